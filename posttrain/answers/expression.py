"""Parse an expression by recursive descent. Raise Unreadable for anything that is not understood completely."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from posttrain.answers.nodes import INFINITY, ONE, Call, Const, Node, Num, Unreadable, Var, word_set
from posttrain.answers.tokens import DEEPEST, Token
from posttrain.answers.units import ends_expression

GREEK = word_set(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell"
)
FUNCTIONS = word_set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log log10 lg exp abs floor ceil sqrt cbrt"
)
BRACKETED = word_set("sqrt cbrt abs floor ceil exp")
SPELLED = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
"""Other names of functions."""
CONSTANTS = {
    "pi": Const("pi"),
    "e": Const("e"),
    "i": Const("i"),
    "infty": INFINITY,
    "infinity": INFINITY,
    "inf": INFINITY,
    "oo": INFINITY,
}
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "|": "|", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
NOT_VARIABLES = word_set(
    "a an and any are as at be but by did do for had has he her his how if in is it its let me my no nor not of off on "
    "one or our out per so than that the then they to too two up us was we who why yes you ten six all set st nd rd th "
    "mod div am pm ok nan"
)


class Parser:
    """Reads one expression from tokens. `units`: it ends where a unit begins."""

    def __init__(self, tokens: Sequence[Token], *, units: bool) -> None:
        self.tokens, self.place, self.units = tokens, 0, units
        self._depth = self._bars = 0

    def at(self, *texts: str) -> bool:
        """Tell whether the next token is one of the given tokens."""
        return self.place < len(self.tokens) and self.tokens[self.place].text in texts

    @property
    def next(self) -> Token | None:
        """Return the next token."""
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, text: str) -> None:
        """Consume a required token."""
        if not self.at(text):
            raise Unreadable(f"{text} is missing")
        self.place += 1

    def expression(self) -> Node:
        """term {(+|-|±) term}."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(f"deeper than {DEEPEST} levels")
        node = self._signed()
        while self.at("+", "-", "\\pm", "\\mp"):
            sign = self.tokens[self.place].text
            self.place += 1
            right = self._term()
            node = Call(
                "pm" if sign in ("\\pm", "\\mp") else "add", (node, Call("neg", (right,)) if sign == "-" else right)
            )
        self._depth -= 1
        return node

    def _signed(self) -> Node:
        """Return a term with its signs."""
        if not self.at("+", "-", "\\pm", "\\mp"):
            return self._term()
        sign = self.tokens[self.place].text
        self.place += 1
        if self.at("+", "-", "\\pm", "\\mp"):
            raise Unreadable("two signs in a row")
        term = self._term()
        if sign in ("\\pm", "\\mp"):
            return Call("pm", (Num(Fraction(0)), term))
        return negative(term) if sign == "-" else term

    def _term(self) -> Node:
        """factor {(*|/|nothing) factor}."""
        node = self._factor()
        divided_by_number = False
        while True:
            if self.at("*", "/"):
                divides = self.at("/")
                if divides and divided_by_number:
                    raise Unreadable("two divisions in a row: brackets are missing")
                self.place += 1
                right = self._sign_after_operator()
                node = Call("div" if divides else "mul", (node, right))
                divided_by_number = divides
            elif self._begins_factor():
                if divided_by_number:  # is 1/2x (1/2)x or 1/(2x)?
                    raise Unreadable("a product after a division: brackets are missing")
                node = Call("mul", (node, self._factor()))
            else:
                return node

    def _sign_after_operator(self) -> Node:
        if self.at("-"):
            self.place += 1
            return negative(self._factor())
        return self._factor()

    def _begins_factor(self) -> bool:
        """Tell whether a product without a sign continues."""
        token = self.next
        if token is None or self._ends(token):
            return False
        if token.kind == "number" and self.tokens[self.place - 1].text == "!" and token.gap:
            return True  # 2! 2!
        if token.kind == "number":
            raise Unreadable("a number after another factor, without a sign between them")
        if token.kind == "word":
            return True
        if token.text == "|":
            return not self._bars  # |a||b|
        return token.text in {
            "(",
            "[",
            "{",
            "\\lfloor",
            "\\lceil",
            "\\sqrt",
            "\\cbrt",
            "\\frac",
            "\\binom",
        } or (token.kind == "command" and token.text[1:] in FUNCTIONS | GREEK | CONSTANTS.keys())

    def _ends(self, token: Token) -> bool:
        return self.units and ends_expression(self.tokens, self.place) and token.kind in ("word", "sign", "command")

    def _factor(self) -> Node:
        """postfix [^ exponent]."""
        node = self._postfix()
        if not self.at("^"):
            return node
        self.place += 1
        return Call("pow", (node, self.exponent()))

    def exponent(self) -> Node:
        """Return the exponent after `^`."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(f"deeper than {DEEPEST} levels")
        if self.at("-"):
            self.place += 1
            node = negative(self.exponent())
        elif self.at("{"):
            node = self._group("{")
        else:
            node = self._postfix()
            if self.at("^"):
                self.place += 1
                node = Call("pow", (node, self.exponent()))
        self._depth -= 1
        return node

    def _postfix(self) -> Node:
        node = self._primary()
        while self.at("!"):
            self.place += 1
            if self.at("!"):
                raise Unreadable("a double factorial")
            node = Call("factorial", (node,))
        if self._depth > 1 and self.at("°"):
            self.place += 1
            node = degrees(node)
        return node

    def _primary(self) -> Node:
        token = self.next
        if token is None:
            raise Unreadable("the answer ends too early")
        if token.kind == "number":
            return self._number(token)
        if token.kind == "word":
            return self._word(token)
        if token.text in CLOSING:
            return self._group(token.text)
        if token.kind == "command":
            return self._command(token.text[1:])
        raise Unreadable(f"'{token.text}' where a value should be")

    def _group(self, opening: str) -> Node:
        self.take(opening)
        bars, self._bars = self._bars, int(opening == "|")
        inner = self.expression()
        for sign, name in (("\\over", "div"), ("\\choose", "binom")):
            if opening == "{" and self.at(sign):
                self.place += 1
                inner = Call(name, (inner, self.expression()))
        self.take(CLOSING[opening])
        self._bars = bars
        if opening in ("|", "\\lfloor", "\\lceil"):
            return Call({"|": "abs", "\\lfloor": "floor", "\\lceil": "ceil"}[opening], (inner,))
        if opening == "\\{":
            raise Unreadable("a set within an expression")
        return inner

    def _number(self, token: Token) -> Node:
        """Return a number, with the fraction of a mixed number."""
        self.place += 1
        assert token.value is not None
        following = self.tokens[self.place : self.place + 3]
        if following and following[0].text == "\\frac" and token.value.denominator == 1:
            fraction = self._fraction()
            top, bottom = fraction.args
            if isinstance(top, Num) and isinstance(bottom, Num):
                return _mixed(token.value, top.value, bottom.value)
            return Call("mul", (Num(token.value), fraction))
        if len(following) == 3 and following[0].kind == "number" and following[0].gap and following[1].text == "/":
            if not all(number.text.replace(",", "").isdigit() for number in (token, following[0], following[2])):
                raise Unreadable("two numbers in a row")
            self.place += 3
            return _mixed(token.value, Fraction(following[0].text), Fraction(following[2].text))
        return Num(token.value)

    def _word(self, token: Token) -> Node:
        self.place += 1
        name = SPELLED.get(token.text, token.text)
        if name in FUNCTIONS:
            return self._function(name)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name in GREEK:
            return self._indexed(name)
        if (name.lower() in NOT_VARIABLES and len(name) > 1) or len(name) > 3:
            raise Unreadable(f"the word '{name}' within an expression")
        nodes = [CONSTANTS.get(letter, Var(letter)) for letter in name[:-1]]
        last = self._indexed(name[-1])
        for node in reversed(nodes):
            if self.at("^"):  # xy^2 is x(y^2)
                self.place += 1
                last = Call("pow", (last, self.exponent()))
            last = Call("mul", (node, last))
        return last

    def _indexed(self, name: str) -> Node:
        """Return a variable with its subscript."""
        if not self.at("_"):
            return CONSTANTS.get(name) or Var(name)
        self.place += 1
        if self.at("{"):
            end = next((n for n in range(self.place, len(self.tokens)) if self.tokens[n].text == "}"), None)
            if end is None:
                raise Unreadable("} is missing")
            below = "".join(token.text for token in self.tokens[self.place + 1 : end])
            self.place = end + 1
        else:
            below = self.next.text if self.next else ""
            self.place += 1
        if not re.fullmatch(r"\w+(?:[+-]\w+)?", below):
            raise Unreadable("an index that is not a name or a number")
        return Var(f"{name}_{below}")

    def _command(self, name: str) -> Node:
        if name == "frac":
            return self._fraction()
        self.place += 1
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return Call("binom", (self._argument(), self._argument()))
        name = SPELLED.get(name, name)
        if name in FUNCTIONS:
            return self._function(name)
        if name in GREEK:
            return self._indexed(name)
        if name in CONSTANTS:
            return CONSTANTS[name]
        raise Unreadable(f"\\{name}")

    def _fraction(self) -> Call:
        r"""`\frac{a}{b}`, `\frac ab`."""
        self.place += 1
        token = self.next
        if token and token.kind == "number" and token.text.isdigit() and len(token.text) == 2:
            self.place += 1  # \frac12
            return Call("div", (Num(Fraction(int(token.text[0]))), Num(Fraction(int(token.text[1])))))
        return Call("div", (self._argument(), self._argument()))

    def _argument(self) -> Node:
        """Return the argument of a LaTeX command: a group, a digit or a letter."""
        if self.at("{"):
            return self._group("{")
        token = self.next
        if token and token.kind == "number" and (not token.text.isdigit() or len(token.text) > 1):
            raise Unreadable("a number without braces after a command")
        if token and token.kind == "word" and len(token.text) > 1:
            raise Unreadable("a word without braces after a command")
        return self._primary()

    def _root(self) -> Node:
        degree: Node = Num(Fraction(2))
        if self.at("["):
            degree = self._group("[")
        if self.at("{", "("):
            return Call("root", (self._group(self.tokens[self.place].text), degree))
        if self.next and self.next.kind == "number":
            return Call("root", (self._argument_number(), degree))
        return Call("root", (self._argument(), degree))

    def _function(self, name: str) -> Node:
        """Return a function with its power, base and argument."""
        power: Node | None = None
        base: Node | None = None
        if name == "log" and self.at("_"):
            self.place += 1
            base = self._argument()
        if self.at("^"):
            self.place += 1
            power = self.exponent()
            if power == negative(ONE):
                if name not in INVERSES:
                    raise Unreadable(f"{name}^-1")
                name, power = INVERSES[name], None
        argument = self._function_argument() if name not in BRACKETED else self._bracketed(name)
        if name in ("sqrt", "cbrt"):
            node: Node = Call("root", (argument, Num(Fraction(2 if name == "sqrt" else 3))))
        elif base is not None:
            node = Call("div", (Call("ln", (argument,)), Call("ln", (base,))))
        else:
            node = Call(name, (argument,))
        return node if power is None else Call("pow", (node, power))

    def _bracketed(self, name: str) -> Node:
        """Return the argument of a function that needs brackets. For a root it may be a bare number."""
        if self.at("(", "[", "{"):
            return self._group(self.tokens[self.place].text)
        if name in ("sqrt", "cbrt") and self.next and self.next.kind == "number":
            return self._argument_number()
        raise Unreadable(f"{name} without brackets")

    def _argument_number(self) -> Node:
        token = self.tokens[self.place]
        self.place += 1
        assert token.value is not None
        return Num(token.value)

    def _function_argument(self) -> Node:
        """Return the argument in brackets, or the product that follows, as in sin 2x."""
        if self.at("(", "[", "{", "|"):
            return self._group(self.tokens[self.place].text)
        if self.at("-"):
            raise Unreadable("a sign after a function, without brackets")
        self._depth += 1  # a degree sign may follow
        node = self._factor()
        while (token := self.next) is not None and not self._ends(token):
            function = token.text.lstrip("\\") in FUNCTIONS and token.text != "\\sqrt"
            if token.kind == "number" or function or token.text == "(" or not self._begins_factor():
                break
            node = Call("mul", (node, self._factor()))
        if self.at("/"):
            raise Unreadable("a division after a function, without brackets")
        self._depth -= 1
        return node


def negative(node: Node) -> Node:
    """Return -node; for a number, the negative number."""
    return Num(-node.value) if isinstance(node, Num) else Call("neg", (node,))


def degrees(node: Node) -> Node:
    """Return this many degrees as an angle."""
    return Call("mul", (node, Call("div", (Const("pi"), Num(Fraction(180))))))


def _mixed(whole: Fraction, top: Fraction, bottom: Fraction) -> Num:
    if bottom.denominator != 1 or top.denominator != 1 or not 0 < top < bottom:
        raise Unreadable("a number before a fraction that is not below 1")
    return Num(whole + top / bottom)
