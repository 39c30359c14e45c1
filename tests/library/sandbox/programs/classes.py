"""Objects of classes that the program or the setup defines."""

from __future__ import annotations

from tests.library.sandbox.programs.case import Case

CLASSES = (
    Case(
        "LeetCode: a design",
        """
        c = LRUCache(2)
        c.put(1, 1)
        c.put(2, 2)
        assert c.get(1) == 1
        c.put(3, 3)
        assert c.get(2) == -1
        """,
        """
        from collections import OrderedDict
        class LRUCache:
            def __init__(self, n): self.n, self.d = n, OrderedDict()
            def get(self, k):
                if k not in self.d: return -1
                self.d.move_to_end(k)
                return self.d[k]
            def put(self, k, v):
                self.d[k] = v
                self.d.move_to_end(k)
                if len(self.d) > self.n: self.d.popitem(last=False)
        """,
        ("last=False", "last=True"),
    ),
    Case(
        "attributes that are set",
        """
        a = Account()
        a.owner = 'x'
        assert a.owner == 'x' and a.balance == 0
        a.deposit(5)
        assert a.balance == 5
        assert hasattr(a, 'deposit') and not hasattr(a, 'other')
        """,
        """
        class Account:
            def __init__(self): self.balance = 0
            def deposit(self, n): self.balance += n
        """,
        ("+= n", "= n + 1"),
    ),
    Case(
        "special methods",
        """
        v = Vector(3, 4)
        assert len(v) == 2 and list(v) == [3, 4] and v[0] == 3 and v[0:1] == [3]
        assert abs(v) == 5.0 and str(v) == '<3, 4>' and bool(v) and f'{v}' == '<3, 4>'
        assert v + Vector(1, 1) == Vector(4, 5) and -v == Vector(-3, -4) and v < Vector(5, 0)
        assert v(2) == 6
        """,
        """
        class Vector:
            def __init__(self, *x): self.x = list(x)
            def __len__(self): return len(self.x)
            def __getitem__(self, i): return self.x[i]
            def __abs__(self): return sum(a * a for a in self.x) ** .5
            def __str__(self): return f'<{self.x[0]}, {self.x[1]}>'
            def __add__(self, o): return Vector(*[a + b for a, b in zip(self.x, o.x)])
            def __neg__(self): return Vector(*[-a for a in self.x])
            def __eq__(self, o): return self.x == o.x
            def __lt__(self, o): return self.x < o.x
            def __call__(self, n): return self.x[0] * n
        """,
        ("a + b", "a - b"),
    ),
    Case(
        "a context manager",
        """
        log = []
        with Timer(log) as t:
            assert t.open
        assert not t.open and log == ['in', 'out']
        with Quiet():
            raise ValueError('x')
        assert True
        """,
        """
        class Timer:
            def __init__(self, log): self.log, self.open = log, False
            def __enter__(self):
                self.log.append('in')
                self.open = True
                return self
            def __exit__(self, *a):
                self.log.append('out')
                self.open = False
        class Quiet:
            def __enter__(self): pass
            def __exit__(self, kind, error, at): return kind is ValueError
        """,
        ("append('out')", "append('end')"),
    ),
    Case(
        "inheritance",
        """
        s = Square(2)
        assert isinstance(s, Shape) and issubclass(Square, Shape) and not isinstance(s, int)
        assert s.area() == 4 and type(s) is Square and type(s).__name__ == 'Square' == s.__class__.__name__
        try:
            Shape()
            assert False
        except TypeError:
            assert True
        """,
        """
        from abc import ABC, abstractmethod
        class Shape(ABC):
            @abstractmethod
            def area(self): ...
        class Square(Shape):
            def __init__(self, a): self.a = a
            def area(self): return self.a ** 2
        """,
        ("class Square(Shape)", "class Square"),
    ),
    Case(
        "class and static methods, properties and class attributes",
        """
        t = Temp.from_f(212)
        assert t.c == 100 and Temp.count == 1 and Temp.valid(-300) is False
        t.c = 5
        assert t.c == 5
        """,
        """
        class Temp:
            count = 0
            def __init__(self, c):
                self._c = c
                Temp.count += 1
            @classmethod
            def from_f(cls, f): return cls((f - 32) / 1.8)
            @staticmethod
            def valid(c): return c > -273
            @property
            def c(self): return self._c
            @c.setter
            def c(self, v): self._c = v
        """,
        ("Temp.count += 1", "Temp.count += 2"),
    ),
    Case(
        "a list of its own class",
        """
        s = Stack()
        s.push(1)
        s.push(2)
        assert s == [1, 2] and s.peek() == 2 and len(s) == 2 and s.pop() == 2
        assert isinstance(s, list) and s + [3] == [1, 3] and 1 in s
        """,
        """
        class Stack(list):
            def push(self, x): self.append(x)
            def peek(self): return self[-1]
        """,
        ("self[-1]", "self[0]"),
    ),
    Case(
        "objects in containers",
        """
        a, b = P(1), P(2)
        assert pair(a, b) == [b, a] and pair(a, b)[1] is a
        assert {a: 1}[a] == 1 and a in [b, a]
        assert pair(a, b) != [a, b] and len({P(1), P(1), b}) == 2
        assert max([a, b], key=lambda p: p.n) is b
        """,
        """
        class P:
            def __init__(self, n): self.n = n
            def __eq__(self, o): return self.n == o.n
            def __hash__(self): return hash(self.n)
        def pair(a, b): return [b, a]
        """,
        ("[b, a]", "[a, b]"),
    ),
    Case(
        "a linked list whose class the program defines",
        """
        head = build([1, 2, 3])
        out = []
        while head:
            out.append(head.val)
            head = head.next
        assert out == [3, 2, 1]
        assert build([]) is None and build([]) == None
        """,
        """
        class Node:
            def __init__(self, val, next): self.val, self.next = val, next
        def build(xs):
            head = None
            for x in xs: head = Node(x, head)
            return head
        """,
        ("for x in xs", "for x in xs[1:]"),
    ),
    Case(
        "deepcopy",
        """
        import copy
        a = Tree([1])
        b = copy.deepcopy(a)
        b.xs.append(2)
        assert a.xs == [1] and b.xs == [1, 2]
        """,
        """
        class Tree:
            def __init__(self, xs): self.xs = xs
        """,
        ("self.xs = xs", "self.xs = xs\n    def __deepcopy__(self, memo): return self"),
    ),
    Case(
        "operators in place on what an object keeps",
        """
        b = Bag()
        xs, d, s = b.xs, b.d, b.s
        xs += [1, 2]
        d |= {"a": 1}
        s -= {5}
        xs[0:1] = [7, 8]
        del xs[2]
        b.n += 1
        assert b.shown() == [[7, 8], {"a": 1}, {6}, 1]
        assert xs == [7, 8] and d == {"a": 1} and s == {6}
        """,
        """
        class Bag:
            def __init__(self): self.xs, self.d, self.s, self.n = [], {}, {5, 6}, 0
            def shown(self): return [self.xs, self.d, self.s, self.n]
        """,
        ("[self.xs,", "[self.xs[:1],"),
    ),
)
LIST_NODE = """
from typing import Optional
class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next
def to_list(node):
    return [] if node is None else [node.val] + to_list(node.next)
def to_node(xs):
    return ListNode(xs[0], to_node(xs[1:])) if xs else None
"""
SETUPS = (
    Case(
        "LeetCode: a linked list of the setup",
        """
        head = to_node([1, 2, 3])
        found = Solution().reverseList(head)
        assert to_list(found) == [3, 2, 1]
        assert isinstance(found, ListNode) and head.next is None and found.next.next is head
        assert to_list(Solution().reverseList(to_node(list(range(200))))) == list(range(200))[::-1]
        """,
        """
        class Solution:
            def reverseList(self, head: Optional[ListNode]):
                last = None
                while head:
                    head.next, last, head = last, head, head.next
                return last
        """,
        ("return last", "return last.next"),
        setup=LIST_NODE,
    ),
    Case(
        "LeetCode: the program has the class of the setup too",
        """
        def check(candidate):
            assert to_list(candidate(to_node([1]))) == [0, 1]
        """,
        """
        from typing import Optional
        class ListNode:
            def __init__(self, val=0, next=None):
                self.val = val
                self.next = next
        class Solution:
            def f(self, head): return ListNode(0, head)
        """,
        ("ListNode(0, head)", "ListNode(1, head)"),
        entry="Solution().f",
        setup=LIST_NODE,
    ),
    Case(
        "a tree, changed in place",
        """
        t = Tree(1, Tree(2), Tree(3))
        left = t.left
        assert invert(t) is t and t.right is left and t.left.v == 3
        assert invert(None) is None and Tree(1) == Tree(1)
        """,
        """
        def invert(t):
            if t:
                t.left, t.right = invert(t.right), invert(t.left)
            return t
        """,
        ("invert(t.right), invert(t.left)", "invert(t.left), invert(t.right)"),
        entry="invert",
        setup="""
        from dataclasses import dataclass
        from typing import Any
        @dataclass
        class Tree:
            v: int
            left: Any = None
            right: Any = None
        """,
    ),
    Case(
        "a doubly linked list",
        """
        a, b = N(1), N(2)
        a.next, b.prev = b, a
        c = insert(a, 5)
        assert a.next is c and c.next is b and b.prev is c
        """,
        """
        def insert(a, v):
            c = N(v)
            c.prev, c.next = a, a.next
            a.next.prev = c
            a.next = c
            return c
        """,
        ("a.next.prev = c", "pass"),
        entry="insert",
        setup="""
        class N:
            def __init__(self, v): self.v, self.prev, self.next = v, None, None
        """,
    ),
    Case(
        "an Enum, a namedtuple and an exception of the setup",
        """
        assert f(P(1, 2)) == (C.A, P(2, 1)) and f(P(1, 2))[1].x == 2
        try:
            f(P(0, 0))
            assert False
        except E as e:
            assert e.args == (C.A,)
        """,
        """
        def f(p):
            if p.x == 0: raise E(C.A)
            return C.A, P(p.y, p.x)
        """,
        ("P(p.y, p.x)", "P(p.x, p.y)"),
        entry="f",
        setup="""
        import enum, collections
        class C(enum.Enum):
            A = 1
        P = collections.namedtuple('P', 'x y')
        class E(Exception): pass
        """,
    ),
)
