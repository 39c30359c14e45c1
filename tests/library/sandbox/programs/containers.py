"""Values that hold others."""

from __future__ import annotations

from tests.library.sandbox.programs.case import Case

CONTAINERS = (
    Case(
        "a Counter",
        """
        from collections import Counter
        assert count('aab') == Counter('aba')
        assert count('aab') == {'a': 2, 'b': 1}
        assert count('a')['z'] == 0 and count('aab').most_common(1) == [('a', 2)]
        """,
        """
        from collections import Counter
        def count(s): return Counter(s)
        """,
        ("return Counter(s)", "return Counter(set(s))"),
        entry="count",
    ),
    Case(
        "a deque",
        """
        from collections import deque
        assert turn([1, 2, 3], 1) == deque([3, 1, 2])
        assert turn([1], 1).maxlen == 5
        """,
        """
        from collections import deque
        def turn(xs, n):
            d = deque(xs, maxlen=5)
            d.rotate(n)
            return d
        """,
        ("d.rotate(n)", "d.rotate(-n)"),
        entry="turn",
    ),
    Case(
        "a defaultdict and an OrderedDict",
        """
        from collections import OrderedDict
        assert group(['a', 'bb', 'cc']) == {1: ['a'], 2: ['bb', 'cc']}
        assert group([])[3] == []
        assert ordered('ba') == OrderedDict([('b', 0), ('a', 1)])
        """,
        """
        from collections import OrderedDict, defaultdict
        def group(words):
            d = defaultdict(list)
            for w in words: d[len(w)].append(w)
            return d
        def ordered(s): return OrderedDict((c, i) for i, c in enumerate(s))
        """,
        ("enumerate(s)", "enumerate(sorted(s))"),
    ),
    Case(
        "a namedtuple",
        """
        p = f(1, 2)
        assert p == (1, 2)
        assert p.x == 1 and p[1] == 2
        x, y = p
        assert [x, y] == [1, 2]
        assert p._replace(x=5) == (5, 2) and isinstance(p, tuple)
        assert repr(p) == 'P(x=1, y=2)'
        """,
        """
        from collections import namedtuple
        P = namedtuple('P', 'x y')
        def f(x, y): return P(x, y)
        """,
        ("P(x, y)", "P(y, x)"),
        entry="f",
    ),
    Case(
        "a dataclass",
        """
        assert Point(1, 2) == Point(1, 2)
        assert Point(1, 2) != Point(2, 1)
        assert Point(1, 2).moved(1).x == 2
        assert repr(Point(1, 2)) == 'Point(x=1, y=2)'
        assert sorted([Point(2, 0), Point(1, 5)])[0] == Point(1, 5)
        """,
        """
        from dataclasses import dataclass
        @dataclass(order=True)
        class Point:
            x: int
            y: int
            def moved(self, n): return Point(self.x + n, self.y)
        """,
        ("self.x + n", "self.x - n"),
    ),
    Case(
        "an Enum",
        """
        assert Color.RED.value == 1 and Color['RED'] is Color.RED and Color(1) == Color.RED
        assert mix('a') is Color.RED
        assert [c.name for c in Color] == ['RED', 'BLUE'] and len(Color) == 2
        assert {Color.RED: 'r'}[mix('a')] == 'r'
        """,
        """
        from enum import Enum
        class Color(Enum):
            RED = 1
            BLUE = 2
        def mix(s): return Color.RED
        """,
        ("return Color.RED", "return Color.BLUE"),
    ),
    Case(
        "views of a dict",
        """
        assert f({'a': 1}).keys() == {'a'}
        assert list(g({'a': 1})) == [('a', 1)] and ('a', 1) in g({'a': 1})
        """,
        """
        def f(d): return dict(d)
        def g(d): return d.items()
        """,
        ("return dict(d)", "return {}"),
    ),
    Case(
        "a memoised list, a UserDict and a str of its own class",
        """
        assert f(2) == [0, 1] and f(2)[1] == 1 and [5] + f(1) == [5, 0]
        assert isinstance(f(1), list)
        assert type(f(1)) == list and d() == {'a': 1} and s() == 'x' and s().upper() == 'X'
        """,
        """
        from functools import lru_cache
        from collections import UserDict
        @lru_cache
        def f(n): return list(range(n))
        def d(): return UserDict(a=1)
        class S(str): pass
        def s(): return S('x')
        """,
        ("S('x')", "S('y')"),
    ),
)
