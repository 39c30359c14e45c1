"""Closures, callbacks and generators."""

from __future__ import annotations

from tests.library.sandbox.programs.case import Case

FUNCTIONS = (
    Case(
        "a closure",
        """
        add2 = adder(2)
        assert add2(3) == 5 and callable(add2)
        assert adder(1)(1) == 2
        """,
        """
        def adder(n):
            return lambda x: x + n
        """,
        ("x + n", "x * n"),
        entry="adder",
    ),
    Case(
        "a counter with state",
        """
        c, d = counter(), counter()
        assert [c(), c(), d()] == [1, 2, 1]
        """,
        """
        def counter():
            n = 0
            def step():
                nonlocal n
                n += 1
                return n
            return step
        """,
        ("n += 1", "n = 1"),
        entry="counter",
    ),
    Case(
        "a function as an argument",
        """
        assert apply(lambda x: x + 1, [1, 2]) == [2, 3]
        assert apply(str, [1]) == ['1'] and apply(len, ['ab']) == [2]
        def double(x): return 2 * x
        assert apply(double, [4]) == [8]
        """,
        "def apply(f, xs): return [f(x) for x in xs]",
        ("for x in xs", "for x in xs[1:]"),
        entry="apply",
    ),
    Case(
        "key=",
        "assert top([{'a': 1}, {'a': 3}], key=lambda d: d['a']) == {'a': 3}",
        "def top(xs, key=None): return max(xs, key=key)",
        ("max(xs", "min(xs"),
        entry="top",
    ),
    Case(
        "a callback that keeps what it gets",
        """
        seen = []
        each([1, 2], seen.append)
        assert seen == [1, 2]
        each([3], lambda x: seen.append(-x))
        assert seen == [1, 2, -3]
        """,
        """
        def each(xs, f):
            for x in xs: f(x)
        """,
        ("for x in xs", "for x in reversed(xs)"),
        entry="each",
    ),
    Case(
        "a decorator",
        """
        calls = []
        @memo
        def slow(n):
            calls.append(n)
            return n if n < 2 else slow(n - 1) + slow(n - 2)
        assert slow(10) == 55 and len(calls) == 11
        assert slow.__name__ == 'slow'
        """,
        """
        import functools
        def memo(f):
            kept = {}
            @functools.wraps(f)
            def g(n):
                if n not in kept: kept[n] = f(n)
                return kept[n]
            return g
        """,
        ("if n not in kept: ", ""),
        entry="memo",
    ),
    Case(
        "a decorator that tries again",
        """
        n = 0
        @retry(3)
        def shaky():
            global n
            n += 1
            if n < 3: raise KeyError('no')
            return n
        assert shaky() == 3
        @retry(2)
        def bad(): raise OSError('down')
        try:
            bad()
            assert False
        except OSError as e:
            assert str(e) == 'down'
        """,
        """
        def retry(times):
            def wrap(f):
                def g():
                    for i in range(times):
                        try: return f()
                        except Exception:
                            if i == times - 1: raise
                return g
            return wrap
        """,
        ("range(times)", "range(times - 1)"),
    ),
    Case(
        "composition",
        """
        inc = lambda x: x + 1
        assert compose(inc, str)(1) == '2'
        assert compose(inc, inc) is not None
        """,
        """
        def compose(*fs):
            def g(x):
                for f in fs: x = f(x)
                return x
            return g
        """,
        ("in fs", "in fs[:1]"),
        entry="compose",
    ),
    Case(
        "an endless generator",
        """
        import itertools
        assert list(itertools.islice(primes(), 4)) == [2, 3, 5, 7]
        g = primes()
        assert next(g) == 2 and next(g) == 3
        """,
        """
        def primes():
            n = 2
            while True:
                if all(n % d for d in range(2, n)): yield n
                n += 1
        """,
        ("range(2, n)", "range(3, n)"),
        entry="primes",
    ),
    Case(
        "a generator that ends, and send",
        """
        g = f([1])
        assert next(g) == 1
        try:
            next(g)
            assert False
        except StopIteration:
            assert True
        e = echo()
        next(e)
        assert e.send(5) == 10 and sum(f([1, 2])) == 3 and list(f([])) == []
        """,
        """
        def f(xs): yield from xs
        def echo():
            x = yield
            while True: x = yield 2 * x
        """,
        ("yield 2 * x", "yield x"),
    ),
    Case(
        "what kind of iterator",
        """
        from collections.abc import Iterator
        import types
        assert isinstance(f(), Iterator) and isinstance(f(), types.GeneratorType)
        assert list(f()) == [0, 1]
        """,
        """
        def f():
            yield 0
            yield 1
        """,
        ("yield 0\n    yield 1", "return iter([0, 1])"),
        entry="f",
    ),
    Case(
        "an attribute of a function",
        """
        f(1)
        f(2)
        assert f.calls == 2
        """,
        """
        def f(x): f.calls += 1
        f.calls = 0
        """,
        ("+= 1", "+= 2"),
        entry="f",
    ),
    Case(
        "constants and variables of the program",
        """
        assert LIMIT == 3 and DAYS[0] == 'mon' and state == 0
        step()
        assert state == 1
        """,
        """
        LIMIT = 3
        DAYS = ['mon', 'tue']
        state = 0
        def step():
            global state
            state += 1
        """,
        ("state += 1", "state += 2"),
    ),
    Case(
        "an iterator as an argument",
        """
        import itertools
        assert first(itertools.count(5)) == 5
        it = iter([1, 2, 3])
        assert first(it) == 1 and list(it) == [2, 3]
        assert first(x * x for x in [3]) == 9
        """,
        """
        def first(it): return next(it)
        """,
        ("next(it)", "list(it)[0]"),
        entry="first",
    ),
    Case(
        "itemgetter and methods of str",
        """
        import operator, functools
        assert by([("a", 2), ("b", 1)], operator.itemgetter(1)) == [("b", 1), ("a", 2)]
        assert by(["B", "a"], str.lower) == ["a", "B"] and by([3, 1], functools.partial(pow, 2)) == [1, 3]
        """,
        """
        def by(xs, key): return sorted(xs, key=key)
        """,
        ("key=key", "reverse=True"),
        entry="by",
    ),
    Case(
        "what a program finds out about a function",
        """
        def add(a, b, c):
            "three numbers"
            return a + b + c
        assert curry(add)(1)(2)(3) == 6 and curry(lambda function: function)(5) == 5
        assert same(add) is add and same(add).__doc__ == "three numbers" and logged(add).__doc__ == "three numbers"
        assert logged(add).__wrapped__ is add and logged(add)(1, b=2, c=3) == 6
        assert logged(lambda x, y=2, *z: (x, y, z))(1) == (1, 2, ())
        """,
        """
        import functools
        def curry(f):
            def step(*given):
                return f(*given) if len(given) == f.__code__.co_argcount else lambda x: step(*given, x)
            return step
        def same(f): return f
        def logged(f):
            @functools.wraps(f)
            def call(*args, **kwargs): return f(*args, **kwargs)
            return call
        """,
        ("@functools.wraps(f)", "pass"),
    ),
    Case(
        "itertools on a generator",
        """
        import itertools
        a, b = itertools.tee(f(2))
        assert list(a) == list(b) == [0, 1] and list(itertools.chain(f(1), f(2))) == [0, 0, 1]
        assert sorted(f(3), reverse=True) == [2, 1, 0] and dict(zip(f(2), "ab")) == {0: "a", 1: "b"}
        """,
        """
        def f(n): yield from range(n)
        """,
        ("range(n)", "range(n + 1)"),
        entry="f",
    ),
)
