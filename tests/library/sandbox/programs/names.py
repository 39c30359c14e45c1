"""Exceptions, and names of the program and of modules."""

from __future__ import annotations

from tests.library.sandbox.programs.case import Case

EXCEPTIONS = (
    Case(
        "an exception class of the program",
        """
        try:
            f(-1)
            assert False
        except TooSmall as e:
            assert str(e) == 'small: -1' and e.value == -1
        assert issubclass(TooSmall, ValueError)
        assert f(1) == 1
        """,
        """
        class TooSmall(ValueError):
            def __init__(self, value):
                super().__init__(f'small: {value}')
                self.value = value
        def f(x):
            if x < 0: raise TooSmall(x)
            return x
        """,
        ("raise TooSmall(x)", "raise ValueError(x)"),
        entry="f",
    ),
    Case(
        "a hierarchy of exceptions",
        """
        for kind in (Low, Base, Exception):
            try:
                f()
            except kind:
                ok = True
            else:
                ok = False
            assert ok
        """,
        """
        class Base(Exception): pass
        class Low(Base): pass
        def f(): raise Low('x')
        """,
        ("raise Low('x')", "raise Base('x')"),
    ),
    Case(
        "arguments of exceptions",
        """
        try:
            {}[f()]
            assert False
        except KeyError: pass
        try:
            g('k')
            assert False
        except KeyError as e:
            assert e.args[0] == 'k' and str(e) == "'k'"
        """,
        """
        def f(): return 0
        def g(k): return {}[k]
        """,
        ("{}[k]", "{}['other']"),
    ),
    Case(
        "an exception of the library",
        """
        import json, dataclasses
        try:
            f('{')
            assert False
        except json.JSONDecodeError as e:
            assert e.pos == 1
        try:
            A(1).x = 2
            assert False
        except dataclasses.FrozenInstanceError:
            assert True
        """,
        """
        import json, dataclasses
        @dataclasses.dataclass(frozen=True)
        class A:
            x: int
        def f(s): return json.loads(s)
        """,
        ("frozen=True", "frozen=False"),
    ),
    Case(
        "contextlib.suppress and a flag",
        """
        import contextlib
        raised = True
        with contextlib.suppress(ValueError):
            f('x')
            raised = False
        assert raised
        """,
        "def f(x): raise ValueError(x)",
        ("raise ValueError(x)", "return x"),
        entry="f",
    ),
    Case(
        "constants and causes of exceptions",
        """
        try:
            f()
            assert False
        except NotFound as e:
            assert e.code == 404 and e.where == {"page": [1]} and isinstance(e.__cause__, KeyError)
        """,
        """
        class NotFound(LookupError):
            code = 404
        def f():
            try:
                {}["a"]
            except KeyError as error:
                e = NotFound("a")
                e.where = {"page": [1]}
                raise e from error
        """,
        ("code = 404", "code = 500"),
    ),
    Case(
        "names of arguments",
        """
        assert f(action=1, self=2, name=3) == [1, 2, 3]
        def kind(type): return type(5)
        assert kind(str) == f(action="5", self=0, name=0)[0]
        """,
        """
        def f(action, self, name): return [action, self, name]
        """,
        ("[action, self", "[self, action"),
        entry="f",
    ),
    Case(
        "an exception that the tests make",
        """
        e = Low(3)
        assert e.value == 3 and str(e) == "low 3" and isinstance(e, Low) and type(e) is Low and e.args == ("low 3",)
        assert repr(e) == "Low('low 3')" and type(e).__name__ == "Low" and Low(value=4).value == 4
        try:
            call(e)
            assert False
        except Low as error:
            assert error.value == 3
        """,
        """
        class Low(KeyError, ValueError):
            def __init__(self, value):
                super().__init__(f"low {value}")
                self.value = value
            def __str__(self): return self.args[0]
        def call(e): raise e
        """,
        ("self.value = value", "self.value = 0"),
    ),
)
MODULES = (
    Case(
        "a module that the program imports",
        """
        assert math.isclose(f(4), 2.0)
        assert Counter(g()) == Counter('a')
        """,
        """
        import math
        from collections import Counter
        def f(x): return math.sqrt(x)
        def g(): return 'a'
        """,
        ("math.sqrt(x)", "x"),
    ),
    Case(
        "what a program prints",
        """
        import io, contextlib
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            hello('x')
        assert out.getvalue() == 'hello x\\n'
        """,
        "def hello(name): print('hello', name)",
        ("'hello', name", "name"),
        entry="hello",
    ),
    Case(
        "threads",
        """
        import threading
        a = Account()
        threads = [threading.Thread(target=a.add, args=(n,)) for n in range(9)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert a.sum == 36
        assert sorted(spread(lambda n: n * n, [1, 2, 3])) == [1, 4, 9]
        """,
        """
        from concurrent.futures import ThreadPoolExecutor
        class Account:
            sum = 0
            def add(self, n): self.sum += n
        def spread(f, xs):
            with ThreadPoolExecutor(3) as pool: return list(pool.map(f, xs))
        """,
        ("+= n", "+= 1"),
    ),
    Case(
        "union types",
        """
        assert isinstance(P(), int | P) and not isinstance(P(), int | str)
        assert P().__class__.__name__ == 'P' and issubclass(P, object)
        """,
        """
        class Q: pass
        class P: pass
        """,
        ("class P:", "P = lambda: Q()\nclass O:"),
    ),
    Case(
        "MBPP",
        """
        assert set(similar((3, 4, 5), (5, 4))) == {4, 5}
        assert similar((1,), (2,)) == ()
        """,
        "def similar(a, b): return tuple(set(a) & set(b))",
        ("&", "|"),
    ),
    Case(
        "a value that is approximate",
        "assert abs(f(2) - 3.14) < 0.01 and round(f(2), 1) == 3.1",
        "def f(x): return 3.141",
        ("3.141", "3.2"),
        entry="f",
    ),
    Case(
        "from solution import",
        """
        from solution import Stack, LIMIT
        import solution
        s = Stack()
        s.push(LIMIT)
        assert s.top() == 3 == solution.LIMIT
        """,
        """
        LIMIT = 3
        class Stack:
            def __init__(self): self.x = []
            def push(self, x): self.x.append(x)
            def top(self): return self.x[-1]
        """,
        ("self.x.append(x)", "self.x.append(-x)"),
    ),
)
