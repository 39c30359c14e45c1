r"""Split an answer into tokens, as models write it: a mixture of LaTeX, markdown and plain text."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from posttrain.answers.nodes import Unreadable

LONGEST = 1500
"""Maximum number of characters of an answer. Longer answers are not read."""
MOST_TOKENS = 600
MOST_DIGITS = 1200
CURRENCIES = "$¢€£¥₹₩₽₪฿"
DEEPEST = 40
"""Maximum number of levels of brackets, groups and powers."""

_SIGNS = {
    "\u2212": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u2219": r"\cdot ",
    "\u00f7": "/", "\u2215": "/", "\u2044": "/", "\u221e": r"\infty ", "\u221a": r"\sqrt ", "\u222a": r"\cup ",
    "\u2205": r"\emptyset ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2a7d": r"\le ", "\u2a7e": r"\ge ",
    "\u2260": r"\ne ", "\u2248": r"\approx ", "\u00b1": r"\pm ", "\u2208": r"\in ", "\u211d": r"\mathbb{R}",
    "\u2220": r"\angle ", "\u2192": r"\to ", "\u03c0": r"\pi ", "\u03b8": r"\theta ", "\u03b1": r"\alpha ",
    "\u03b2": r"\beta ", "\u03b3": r"\gamma ", "\u03bb": r"\lambda ", "\u03c6": r"\phi ", "\u03c9": r"\omega ",
    "\u03bc": r"\mu ", "\u00b5": r"\mu ", "\u03c3": r"\sigma ", "\u03c1": r"\rho ", "\u03b4": r"\delta ",
    "\u0394": r"\Delta ", "\u03a9": r"\Omega ", "\u00ba": "\u00b0", "\u2032": "'", "\u2033": '"', "\u2019": "'",
    "\u27e8": r"\langle ", "\u27e9": r"\rangle ", "\u230a": r"\lfloor ", "\u230b": r"\rfloor ",
    "\u2308": r"\lceil ", "\u2309": r"\rceil ", "\u2216": r"\setminus ", "\uff05": "%", "\u00a0": " ", "\u202f": " ",
    "\u2009": " ", "\u200a": " ", "\u2002": "\t", "\u2003": "\t", "\u00bd": r"\frac{1}{2}",
    "\u2153": r"\frac{1}{3}", "\u2154": r"\frac{2}{3}", "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}",
    "\u2155": r"\frac{1}{5}", "\u2156": r"\frac{2}{5}", "\u2157": r"\frac{3}{5}", "\u2158": r"\frac{4}{5}",
    "\u2159": r"\frac{1}{6}", "\u215a": r"\frac{5}{6}", "\u215b": r"\frac{1}{8}", "\u215c": r"\frac{3}{8}",
    "\u215d": r"\frac{5}{8}", "\u215e": r"\frac{7}{8}", "\u221b": r"\cbrt ",
}  # fmt: skip
FULL_WIDTH = {place: place - 0xFEE0 for place in range(0xFF01, 0xFF5F)} | {0x3000: " ", 0x3002: ".", 0x3001: ","}
"""Full-width digits, letters and signs, as in Chinese and Japanese texts."""
_TABLE = FULL_WIDTH | str.maketrans(_SIGNS)
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿˣ", "0123456789-+nx", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_WRAPS = (
    "text|mathrm|textbf|mbox|hbox|mathbf|operatorname\\*?|textit|mathit|boldsymbol|bm|textrm|mathsf|textsf|texttt|emph"
    "|mathtt|boxed|fbox|ensuremath|textnormal|underline|mathcal|textup|mathop|mathnormal"
)
_WRAPPED = re.compile(rf"\\(?:{_WRAPS})\s*\{{([^{{}}\\]*)\}}")
_WRAP = re.compile(rf"\\(?:{_WRAPS})(?![a-zA-Z])")
_BREAKS = re.compile(
    r"\\(?:[;: ]|q?quad(?![a-zA-Z])|enspace(?![a-zA-Z])|thinspace(?![a-zA-Z])|[()\[\]]|hspace\s*\{[^{}]*\}"
    r"|(?:displaystyle|textstyle|limits|nolimits|rm|bf|it|sf|tt|large|Large|color\{\w+\})(?![a-zA-Z]))"
)
_ALIGNED = re.compile(r"\\begin\s*\{(aligned|align\*?|gathered|split)\}([^\ue001]*)\\end\s*\{\1\}")
_SIZES = re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z])|\{\s*\u00b0\s*\}|\u00b0)|\\degrees?(?![a-zA-Z])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?(?![\d.]|,\d)")
_SPACES = re.compile(r"[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?(?![\d.,]|[ \t]*[/\\]|[ \t]+\d)")
_POWER_OF_TEN = re.compile(r"[eE]([+-]?\d{1,4})(?![\w.])")
_REPEATED = re.compile(r"(\d*\.\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
_WORD = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ]+|[\u0400-\u04ff]+|[\u3040-\u30ff\u4e00-\u9fff]+|[\uac00-\ud7a3]+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[{}|\\%$&#_])")
_LONG_SIGN = re.compile(r"<=|>=|!=|==|\*\*")
_ALIASES = {"\\%": "%", "\\lbrace": "\\{", "\\rbrace": "\\}", "**": "^", "==": "=", "<=": "\\le", ">=": "\\ge",
            "!=": "\\ne", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne", "\\lt": "<", "\\gt": ">",
            "\\leqslant": "\\le", "\\geqslant": "\\ge", "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac",
            "\\sfrac": "\\frac", "\\nicefrac": "\\frac", "\\bigcup": "\\cup", "\\mid": "|",
            "\\simeq": "\\approx", "\\vert": "|", "\\lvert": "|", "\\rvert": "|", "\\ast": "*", "\\times": "*",
            "\\equiv": "=", "\\cdot": "*", "\\div": "/", "\\colon": ":", "\\varnothing": "\\emptyset", "\\rarr": "\\to",
            "\\dbinom": "\\binom", "\\tbinom": "\\binom", "\\infin": "\\infty", "\\lbrack": "[", "\\rbrack": "]",
            "\\backslash": "\\setminus", "\\varphi": "\\phi", "\\rightarrow": "\\to"}  # fmt: skip


@dataclass(frozen=True)
class Token:
    """A piece of an answer."""

    kind: str
    """number, word, command or sign."""
    text: str
    gap: bool
    """True if a space precedes it."""
    value: Fraction | None = None


def tokens(text: str) -> list[Token]:
    """Return the tokens of an answer. Raise Unreadable if any part is unknown."""
    if len(text) > LONGEST:
        raise Unreadable(f"longer than {LONGEST} characters")
    plain = _plain(text)
    lists = _brackets_with_lists(plain)
    result: list[Token] = []
    place, gap = 0, False
    while place < len(plain):
        if plain[place] in " \t\n\r":
            place, gap = place + 1, True
            continue
        token, place = _token(plain, place, gap, lists)
        result.append(token)
        gap = False
        if len(result) > MOST_TOKENS:
            raise Unreadable(f"more than {MOST_TOKENS} parts")
    return result


def _token(text: str, place: int, gap: bool, lists: set[int]) -> tuple[Token, int]:  # noqa: FBT001
    if (text[place].isascii() and text[place].isdigit()) or text[place] == ".":
        return _number(text, place, gap, lists)
    if word := _WORD.match(text, place):
        return Token("word", _without_accents(word[0]), gap), word.end()
    if command := _COMMAND.match(text, place):
        name = _ALIASES.get(command[0], command[0])
        return Token("command" if name.startswith("\\") else "sign", name, gap), command.end()
    if sign := _LONG_SIGN.match(text, place):
        name = _ALIASES.get(sign[0], sign[0])
        return Token("command" if name.startswith("\\") else "sign", name, gap), sign.end()
    if text[place] in "+-*/^_()[]{}|,;:=<>!%'&\u00b0" + CURRENCIES:
        return Token("sign", text[place], gap), place + 1
    raise Unreadable(f"{text[place]!r} in an answer")


def _without_accents(word: str) -> str:
    """Return a Latin word in ASCII: kilómetros as kilometros."""
    plain = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode()
    return plain if len(plain) == len(word) else word


def _number(text: str, place: int, gap: bool, lists: set[int]) -> tuple[Token, int]:  # noqa: FBT001
    if place and text[place - 1] in "0123456789.":
        raise Unreadable("two decimal points")
    if repeated := _REPEATED.match(text, place):
        return Token("number", repeated[0], gap, _repeating(repeated[1], repeated[2])), repeated.end()
    after_comma = place > 1 and text[place - 1] == "," and text[place - 2].isdigit()
    single = place in lists or text[place - 1 : place] in ("_", "^")
    match = None if single or after_comma else _COMMAS.match(text, place)
    match = match or (None if single else _SPACES.match(text, place)) or _NUMBER.match(text, place)
    if not match:
        raise Unreadable("a point without digits")
    digits, end = re.sub(r"[, ]", "", match[0]), match.end()
    if len(digits) > MOST_DIGITS:
        raise Unreadable(f"a number of more than {MOST_DIGITS} digits")
    value = Fraction(digits if not digits.startswith(".") else "0" + digits)
    if power := _POWER_OF_TEN.match(text, end):
        if abs(int(power[1])) > MOST_DIGITS:
            raise Unreadable("an exponent that is too large")
        return Token("number", match[0] + power[0], gap, value * Fraction(10) ** int(power[1])), power.end()
    return Token("number", match[0], gap, value), end


def _repeating(start: str, again: str) -> Fraction:
    whole, _, digits = start.partition(".")
    if len(start) + len(again) > MOST_DIGITS:
        raise Unreadable(f"a number of more than {MOST_DIGITS} digits")
    scale = Fraction(10) ** len(digits)
    return Fraction(int((whole or "0") + digits)) / scale + Fraction(int(again), 10 ** len(again) - 1) / scale


def _plain(text: str) -> str:
    """Return the text with one spelling of signs, without markdown, formula delimiters and font changes."""
    text = re.sub("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)[/⁄]([₀₁₂₃₄₅₆₇₈₉]+)", _small_fraction, text.strip())
    text = text.translate(_TABLE).replace("\\\\", "\ue001")
    text = re.sub(r"[\u2013\u2014](?=[\d\\.$(])", "-", text) if text[:1] in "\u2013\u2014" else text
    text = _scripts(_scripts(text, _RAISED, "^"), _LOWERED, "_")
    text = _ALIGNED.sub(lambda match: match[2].replace("&", ""), text)
    text = re.sub(r"(?<=mathbb\{R\})\s*\\\s+(?=\\?\{)", r"\\setminus ", text)
    text = re.sub(r"(\d)\u00b0\s?(\d+)'(?:\s?(\d+)(?:\"|''))?", _arc, text)
    text = re.sub(r"(\d)'\s?(\d+)(?:\"|'')", r"\1 ft \2 in", text)
    text = re.sub(r"\{\s*([-+=])\s*\}", r"\1", text)
    text = re.sub(r"(?<![\w)}])\*\*([-$]{0,2}[\d.,/]+%?)\*\*(?![\w(])", r"\1", text)
    text = re.sub(r"(?<=\d),\\!\s+(?=\d{3}(?!\d))", ",", text)  # MATH's 14,\! 700
    text = re.sub(r"\\!|\\,(?=\s*(?:,|\\,))", "", text)
    text = re.sub(r"(?<=\d)\{,\}(?=\d)|(?<=\d),\{\}(?=\d)", ",", text)
    text = re.sub(r"\\(?:text|mathrm|mbox)\s*\{,\}", ",", text)
    text = re.sub(r"(?<=\d)(?:\\[,;: ]|~)(?=\d)", " ", text)
    text = re.sub(r"\\mu[\s\\,{]*(?:mathrm|text)?\{?(?=[mgslLAV](?![A-Za-z]))", "\tu", text) if "\\mu" in text else text
    text = re.sub(r"(?<=[\d\s])[xX]\s*(?=10\s*\^)", r"\\times ", text)
    text = re.sub(r"(?<=[A-Za-z])\.(?=\s|\Z|[A-Za-z)}])", "", text)
    text = re.sub(r"\\mathbf\s*\{?R\}?(?![a-z])", r"\\mathbb{R}", text)
    text = re.sub(r"\\(?:text)?color\s*\{\w+\}|</?(?:b|i|u|em|strong)>|\\(?:tag|[hv]?phantom)\*?\{[^{}]*\}", "", text)
    text = _DEGREES.sub("\u00b0", text.replace("\\,", "\t"))
    if re.search(r"~~|\A[\s$(]*~", text):
        raise Unreadable("a tilde: about, or struck out")
    text = text.replace("~", "\t")
    for _ in range(3):
        text = _WRAPPED.sub("\t\\1\t", text)
    text = _BREAKS.sub("\t", _SIZES.sub("", _WRAP.sub("", text)))
    return _without_delimiters(_without_markdown(text.replace("\ue001", "\\\\")))


def _small_fraction(match: re.Match[str]) -> str:
    """Return a fraction of superscript and subscript digits."""
    top, bottom = ("".join({**_RAISED, **_LOWERED}[digit] for digit in part) for part in match.groups())
    return rf"\frac{{{top}}}{{{bottom}}}"


def _arc(match: re.Match[str]) -> str:
    """Return minutes and seconds of an angle by name."""
    return f"{match[1]} degrees {match[2]} arcminutes" + (f" {match[3]} arcseconds" if match[3] else "")


def _scripts(text: str, signs: dict[str, str], mark: str) -> str:
    """Return superscript or subscript Unicode digits as `^{..}` or `_{..}`."""
    return re.sub(f"[{''.join(signs)}]+", lambda run: f"{mark}{{{''.join(signs[char] for char in run[0])}}}", text)


def _without_markdown(text: str) -> str:
    """Return the text without markers of bold, italics and code around it."""
    text = text.strip()
    for _ in range(4):
        for sign in ("**", "__", "*", "_", "`", '"', "'", "\u201c"):
            other = "\u201d" if sign == "\u201c" else sign
            inner = text[len(sign) : -len(other)].strip()
            if text.startswith(sign) and text.endswith(other) and inner and sign not in inner:
                text = inner
    return text


def _without_delimiters(text: str) -> str:
    """Return the text without the dollar signs around formulas. Dollar signs for money stay."""
    text = text.replace("\\$", "\ue000").replace("$$", "\t")
    places = [place for place, char in enumerate(text) if char == "$"]
    money = all(re.match(r"\s?-?[\d.]", text[place + 1 : place + 4]) for place in places)
    if len(places) % 2 == 0 and not money:
        text = text.replace("$", "\t")
    elif len(places) > 1 and len(places) % 2:
        raise Unreadable("a dollar sign too many")
    return text.replace("\ue000", "$").strip()


def _brackets_with_lists(text: str) -> set[int]:
    """Return the places in brackets where commas separate members: `(1,234)` is a pair, `(1,234, 5)` is not."""
    inside: set[int] = set()
    opened: list[int] = []
    around = (0, len(text) - 1) if text[:1] + text[-1:] == "{}" else ()
    for place, sign in enumerate(text):
        escaped = place in around or text[place - 1 : place] == "\\"
        if sign in "([" or (sign == "{" and escaped):
            opened.append(place)
            if len(opened) > DEEPEST:
                raise Unreadable(f"more than {DEEPEST} levels of brackets")
        elif sign in ")]" or (sign == "}" and escaped):
            start = opened.pop() if opened else 0
            if not re.search(r",\s", text[start:place]):
                inside.update(range(start, place))
    return inside
