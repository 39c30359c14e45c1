"""What the tests cannot do with a program: an error that names the line."""

from __future__ import annotations

from tests.library.sandbox.programs.case import Case

CANNOT = (
    Case(
        "an operator between an object and a number",
        """
        v = Vector(1)
        assert (v * 3).x == 3
        """,
        """
        class Vector:
            def __init__(self, x): self.x = x
            def __mul__(self, n): return Vector(self.x * n)
        """,
        ("self.x * n", "self.x + n"),
        error="line 2 of the tests: the program is not asked for '__mul__' between its Vector and a plain value (int)",
    ),
    Case(
        "in",
        """
        b = Bag()
        b.add(3)
        assert 3 in b
        """,
        """
        class Bag:
            def __init__(self): self.x = set()
            def add(self, x): self.x.add(x)
            def __contains__(self, x): return x in self.x
        """,
        ("x in self.x", "x not in self.x"),
        error="line 3 of the tests: the program is not asked for 'in' between its Bag",
    ),
    Case(
        "an object that is equal to a plain value",
        "assert Money(3) == 3",
        """
        class Money:
            def __init__(self, n): self.n = n
            def __eq__(self, o): return self.n == o
        """,
        ("self.n == o", "self.n != o"),
        error="line 1 of the tests: the program is not asked for '==' between its Money",
    ),
    Case(
        "an object of the tests",
        """
        class Duck:
            def sound(self): return 'quack'
        assert f(Duck()) == 'quack'
        """,
        "def f(d): return d.sound()",
        ("d.sound()", "None"),
        entry="f",
        error="line 3 of the tests: a Duck cannot be sent to the program",
    ),
    Case(
        "a class of the tests that extends one of the program",
        """
        class Sub(Base):
            pass
        assert Sub().f() == 1
        """,
        """
        class Base:
            def f(self): return 1
        """,
        ("return 1", "return 2"),
        error="line 1 of the tests: a class of the tests cannot extend a class of the program",
    ),
    Case(
        "an object as JSON",
        """
        import json
        assert json.dumps(f(1)) == '[0]'
        """,
        """
        from functools import cache
        @cache
        def f(n): return [0]
        """,
        ("[0]", "[1]"),
        entry="f",
        error="line 2 of the tests",
    ),
    Case(
        "a coroutine",
        """
        import asyncio
        assert asyncio.run(f(1)) == 2
        """,
        "async def f(x): return x + 1",
        ("x + 1", "x"),
        entry="f",
        error="line 2 of the tests: a coroutine of the program cannot be awaited here",
    ),
    Case(
        "fields of a dataclass",
        """
        import dataclasses
        assert dataclasses.asdict(P(1)) == {'x': 1}
        """,
        """
        import dataclasses
        @dataclasses.dataclass
        class P:
            x: int
        """,
        ("x: int", "y: int"),
        error="line 2 of the tests",
    ),
    Case(
        "a match statement",
        """
        found = None
        match P(1):
            case P(x=1): found = True
        assert found
        """,
        """
        class P:
            def __init__(self, x): self.x = x
        """,
        ("self.x = x", "pass"),
        error="line 3 of the tests",
    ),
    Case(
        "input",
        """
        import io, sys
        sys.stdin = io.StringIO('5')
        assert f() == 5
        """,
        "def f(): return int(input())",
        ("int(input())", "input()"),
        entry="f",
        error=": the tests use stdin, which does not affect the program",
    ),
    Case(
        "random numbers",
        """
        import random
        random.seed(1)
        want = random.random()
        random.seed(1)
        assert f() == want
        """,
        """
        import random
        def f(): return random.random()
        """,
        ("random.random()", "0.5"),
        entry="f",
        error="line 5 of the tests",
    ),
    Case(
        "a variable that the tests set",
        """
        import solution
        solution.LIMIT = 5
        assert solution.f() == 5
        """,
        """
        LIMIT = 3
        def f(): return LIMIT
        """,
        ("return LIMIT", "return 0"),
        error="line 2 of the tests: `LIMIT` of the program cannot be set",
    ),
    Case(
        "a path",
        """
        from pathlib import PurePosixPath
        assert f('a') == PurePosixPath('/a')
        """,
        """
        from pathlib import PurePosixPath
        def f(x): return PurePosixPath('/') / x
        """,
        ("'/'", "'/b'"),
        entry="f",
        error="line 2 of the tests",
    ),
    Case(
        "SystemExit",
        """
        try:
            f()
            assert False
        except SystemExit as e:
            assert e.code == 2
        """,
        """
        import sys
        def f(): sys.exit(2)
        """,
        ("2", "3"),
        entry="f",
        error="line 2 of the tests: the program raises SystemExit, which cannot be raised here",
    ),
    Case(
        "a method that says yes or no, as those of str",
        "assert Word('abc').startswith('a')",
        """
        class Word:
            def __init__(self, s): self.s = s
            def startswith(self, x): return self.s.startswith(x)
        """,
        ("return self", "return not self"),
        error="line 1 of the tests: the program is not asked for startswith of its Word",
    ),
    Case(
        "a name of a module that only an object of the program has",
        "assert math.isclose(f(4), 2.0)",
        """
        class math:
            isclose = lambda a, b: abs(a - b) < 1e-6
        def f(x): return x ** .5
        """,
        ("x ** .5", "x"),
        error="line 1 of the tests: the tests use `math` without importing it",
    ),
    Case(
        "a method of an exception",
        """
        try:
            f()
        except Low as e:
            assert e.shown() == "low"
        """,
        """
        class Low(Exception):
            def shown(self): return "low"
        def f(): raise Low
        """,
        ('"low"', '"high"'),
        error="line 4 of the tests: the program is not asked for shown of its exception",
    ),
    Case(
        "a file in memory as an argument",
        """
        import io
        out = io.StringIO()
        write(out)
        assert out.getvalue() == "hi"
        """,
        """
        def write(out): out.write("hi")
        """,
        ('"hi"', '""'),
        error="line 3 of the tests: a StringIO cannot be sent to the program",
    ),
    Case(
        "an object of the setup that has its own __eq__",
        """
        assert N(1) == N(1) and isinstance(N(1), N)
        assert f(3) == N(3)
        """,
        """
        def f(x): return N(x)
        """,
        ("N(x)", "N(0)"),
        entry="f",
        setup="""
        class N:
            def __init__(self, v): self.v = v
            def __eq__(self, o): return isinstance(o, N) and self.v == o.v
        """,
        error="line 2 of the tests: the program is not asked for '==' between its N and a plain value (N)",
    ),
    Case(
        "a list of the tests with a method",
        """
        class Rows(list):
            def first(self): return self[0]
        assert f(Rows([1])) == 1
        """,
        """
        def f(rows): return rows.first()
        """,
        ("rows.first()", "None"),
        entry="f",
        error="line 3 of the tests: a Rows cannot be sent to the program",
    ),
    Case(
        "a class method of an exception",
        """
        assert Low.of(3).value == 3
        """,
        """
        class Low(Exception):
            @classmethod
            def of(cls, x):
                e = cls()
                e.value = x
                return e
        """,
        ("= x", "= 0"),
        error="line 1 of the tests: the program is not asked for of of its exception",
    ),
)
