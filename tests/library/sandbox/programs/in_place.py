"""Arguments that change in place, numbers and dates."""

from __future__ import annotations

from tests.library.sandbox.programs.case import Case

IN_PLACE = (
    Case(
        "a list sorted in place",
        """
        xs = [3, 1, 2]
        assert f(xs) is None
        assert xs == [1, 2, 3]
        """,
        """
        def f(xs):
            xs.sort()
        """,
        ("xs.sort()", "sorted(xs)"),
        entry="f",
    ),
    Case(
        "LeetCode: zeros moved to the end",
        """
        def check(candidate):
            nums = [0, 1, 0, 3]
            candidate(nums)
            assert nums == [1, 3, 0, 0]
            nums = [0]
            candidate(nums)
            assert nums == [0]
        """,
        """
        class Solution:
            def moveZeroes(self, nums):
                nums[:] = sorted(nums, key=lambda n: n == 0)
        """,
        ("nums[:]", "nums"),
        entry="Solution().moveZeroes",
    ),
    Case(
        "LeetCode: a matrix rotated in place",
        """
        m = [[1, 2], [3, 4]]
        row = m[0]
        Solution().rotate(m)
        assert m == [[3, 1], [4, 2]]
        assert m[0] is row
        """,
        """
        class Solution:
            def rotate(self, m):
                new = [list(r) for r in zip(*m[::-1])]
                for old, r in zip(m, new):
                    old[:] = r
        """,
        ("old[:] = r", "old = r"),
    ),
    Case(
        "a dict, a set and a bytearray",
        """
        d, s, b = {'a': 1}, {1}, bytearray(b'a')
        f(d, s, b)
        assert d == {'a': 2, 'b': [3]}
        assert s == {1, 2} and b == b'ab'
        """,
        """
        def f(d, s, b):
            d['a'] += 1
            d['b'] = [3]
            s.add(2)
            b.append(98)
        """,
        ("s.add(2)", "s = {1, 2}"),
        entry="f",
    ),
    Case(
        "the argument is returned",
        """
        xs = [1]
        assert append(xs, 2) is xs
        assert xs == [1, 2]
        assert append(xs, 3) == [1, 2, 3] == xs
        """,
        """
        def append(xs, x):
            xs.append(x)
            return xs
        """,
        ("xs.append(x)", "xs = xs + [x]"),
        entry="append",
    ),
    Case(
        "the argument stays as it is",
        """
        xs = [3, 1]
        assert f(xs) == [1, 3]
        assert xs == [3, 1]
        """,
        """
        def f(xs):
            return sorted(xs)
        """,
        ("return sorted(xs)", "xs.sort(); return xs"),
        entry="f",
    ),
    Case(
        "an object that keeps its argument",
        """
        xs = [1]
        bag = Bag(xs)
        bag.add(2)
        assert xs == [1, 2]
        xs.append(3)
        assert bag.total() == 6
        """,
        """
        class Bag:
            def __init__(self, xs): self.xs = xs
            def add(self, x): self.xs.append(x)
            def total(self): return sum(self.xs)
        """,
        ("self.xs = xs", "self.xs = list(xs)"),
    ),
    Case(
        "an object that copies its argument",
        """
        xs = [1]
        bag = Bag(xs)
        xs.append(3)
        assert bag.total() == 1
        """,
        """
        class Bag:
            def __init__(self, xs): self.xs = list(xs)
            def total(self): return sum(self.xs)
        """,
        ("list(xs)", "xs"),
    ),
    Case(
        "a list of an object, changed by the tests",
        """
        n = Node(1)
        n.children.append(Node(2))
        n.children.append(Node(3))
        assert n.total() == 6
        assert [c.value for c in n.children] == [2, 3]
        """,
        """
        class Node:
            def __init__(self, value): self.value, self.children = value, []
            def total(self): return self.value + sum(c.total() for c in self.children)
        """,
        ("self.value + sum", "sum"),
    ),
    Case(
        "a getter that returns a copy",
        """
        s = Stack()
        s.push(1)
        s.items().append(9)
        assert s.items() == [1]
        """,
        """
        class Stack:
            def __init__(self): self._items = []
            def push(self, x): self._items.append(x)
            def items(self): return list(self._items)
        """,
        ("list(self._items)", "self._items"),
    ),
    Case(
        "rows that are the same list",
        """
        g = grid(2)
        g[0][0] = 1
        assert g == [[1, 0], [0, 0]]
        """,
        "def grid(n): return [[0] * n for _ in range(n)]",
        ("[[0] * n for _ in range(n)]", "[[0] * n] * n"),
        entry="grid",
    ),
)
NUMBERS_AND_DATES = (
    Case(
        "a Fraction",
        """
        from fractions import Fraction
        assert half(1) == Fraction(1, 2)
        assert half(2) == 1
        """,
        """
        from fractions import Fraction
        def half(x): return Fraction(x, 2)
        """,
        ("x, 2", "x, 3"),
        entry="half",
    ),
    Case(
        "a Decimal",
        """
        from decimal import Decimal
        assert price('0.1') == Decimal('0.3')
        assert isinstance(price('1'), Decimal)
        """,
        """
        from decimal import Decimal
        def price(x): return 3 * Decimal(x)
        """,
        ("3 * Decimal(x)", "3 * float(x)"),
        entry="price",
    ),
    Case(
        "dates",
        """
        from datetime import date, datetime, timedelta, time
        assert day('2024-02-28', 2) == date(2024, 3, 1)
        assert day('2024-02-28', 1) - date(2024, 2, 28) == timedelta(days=1)
        """,
        """
        from datetime import date, timedelta
        def day(text, n): return date.fromisoformat(text) + timedelta(days=n)
        """,
        ("days=n", "days=n + 1"),
        entry="day",
    ),
    Case(
        "a datetime with a zone, and a time",
        """
        from datetime import datetime, time, timezone
        noon = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
        assert f(noon) == (datetime(2024, 1, 1, 13, tzinfo=timezone.utc), time(13))
        """,
        """
        from datetime import timedelta
        def f(t): return t + timedelta(hours=1), (t + timedelta(hours=1)).time()
        """,
        ("t + timedelta(hours=1),", "t,"),
        entry="f",
    ),
    Case(
        "an IntEnum",
        """
        assert f() == 2
        assert f().name == 'HIGH'
        assert f() + 1 == 3
        assert isinstance(f(), int)
        """,
        """
        import enum
        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 2
        def f(): return Level.HIGH
        """,
        ("Level.HIGH", "Level.LOW"),
    ),
    Case(
        "NaN, complex numbers and long integers",
        """
        import math
        assert math.isnan(f(0)) and f(1) == 1j and f(2) == 10 ** 5000
        """,
        "def f(n): return [float('nan'), 1j, 10 ** 5000][n]",
        ("1j", "1"),
        entry="f",
    ),
)
