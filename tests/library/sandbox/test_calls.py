"""The program's end of a connection."""

from __future__ import annotations

from tests.library.sandbox.ends import connected

CODE = """
kept = []
class Bag:
    def __init__(self, xs): self.xs = xs
    def add(self, x): self.xs.append(x)
def keep(xs): kept.append(xs)
def fresh(): return [[1], {2}]
def own(): return kept
def add(xs): xs.append(xs[0])
"""


def test_the_program_sends_what_it_has_changed() -> None:
    with connected(CODE) as (remote, _):
        xs = [[1]]
        assert remote.named("add")(xs) is None and xs == [[1], [1]] and xs[0] is xs[1]
        assert remote.shared == {}  # it keeps nothing of them
        bag = remote.named("Bag")(xs)
        assert xs in remote.shared.values()
        bag.add(5)
        assert xs == [[1], [1], 5]
        xs.clear()
        assert bag.xs is xs and remote.named("own")() == []


def test_a_container_that_the_program_keeps_is_a_reference() -> None:
    with connected(CODE) as (remote, _):
        fresh = remote.named("fresh")()
        assert type(fresh) is list and type(fresh[0]) is list and type(fresh[1]) is set
        own = remote.named("own")()
        assert type(own) is not list and own == []
        own.append(1)
        assert remote.named("own")() == [1] and own is remote.named("own")()


def test_what_is_asked_of_objects() -> None:
    code = (
        "from collections import UserDict, deque\nimport enum\nclass E(enum.IntEnum):\n    A = 1\nclass S(str):\n    "
    )
    code += "def count(self, x): return 5\nd, s, e, o = UserDict(a=[1]), S('ab'), E.A, object()"
    with connected(code) as (remote, _):
        values = [remote.ask("value", remote.named(name)) for name in "dse"]
        assert values == [{"a": [1]}, "ab", 1] and [type(value) for value in values] == [dict, str, int]
        defined = [remote.ask("defined", remote.named("s"), name) for name in ("count", "upper", "__eq__", "none")]
        assert defined == ["own", "library", "library", ""]
        assert remote.ask("defined", remote.named("o"), "__eq__") == ""
