"""The units of answers: lengths, masses, times, angles, money, and counted nouns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

from posttrain.answers.nodes import ONE, Call, Const, Node, Num, Unit, Unreadable, word_set
from posttrain.answers.tokens import Token

PERCENT = Unit((("percent", 1),), ONE)
_PREFIXES = {
    "": "1",
    "k": "1000",
    "M": "1e6",
    "G": "1e9",
    "c": "0.01",
    "m": "0.001",
    "n": "1e-9",
    "u": "1e-6",
    "d": "0.1",
}
_SPELLED = {"": "1", "kilo": "1000", "mega": "1e6", "giga": "1e9", "centi": "0.01", "milli": "0.001", "micro": "1e-6",
            "nano": "1e-9", "deci": "0.1"}  # fmt: skip
_PREFIXED = """
m meter|metre|metro L 1
g gram|gramm|gramo|grammo M 1
s second|sekunde|segundo|secondo T 1
l liter|litre|litro L3 0.001
L liter L3 0.001
N newton M1L1T-2 1000
J joule M1L2T-2 1000
W watt M1L2T-3 1000
Wh watthour M1L2T-2 3600000
Pa pascal M1L-1T-2 1000
cal calorie M1L2T-2 4184
Hz hertz T-1 1
V volt V 1
A ampere|amp A 1
B byte B 8
mol mole X 1
"""
"""Symbol, names, dimensions and size in meters, grams and seconds, for units with prefixes."""
_PLAIN = """
in|inch|inches|ins L 0.0254
ft|foot|feet L 0.3048
yd|yds|yard L 0.9144
mi|mile L 1609.344
lb|lbs|pound M 453.59237
oz|ounce M 28.349523125
stone M 6350.29318
ton W:ton 1
tonne M 1000000
mcg M 0.000001
min|mins|minute|minuten|minuto|мин|分钟|分 T 60
h|hr|hrs|hour|stunde|stunden|heure|hora|ч|час|часа|часов|小时|時間 T 3600
d|day|tag|tage|jour|día|дн|天|日 T 86400
км|千米|公里 L 1000
м|米 L 1
см|厘米|公分 L 0.01
мм|毫米 L 0.001
平方米 L2 1
平方厘米 L2 0.0001
立方米 L3 1
立方厘米 L3 0.000001
кг|千克|公斤 M 1000
г|克 M 1
с|сек|秒 T 1
л|升 L3 0.001
мл|毫升 L3 0.000001
week|wk|wks T 604800
sec|secs T 1
month|mo W:month 1
year|yr|yrs W:month 12
decade W:month 120
century|centuries W:month 1200
acre L2 4046.8564224
hectare|ha L2 10000
cc L3 0.000001
gallon|gal L3 0.003785411784
quart|qt L3 0.000946352946
pint|pt L3 0.000473176473
cup L3 0.0002365882365
tablespoon|tbsp L3 0.00001478676478125
teaspoon|tsp L3 0.00000492892159375
bit B 1
ohm|\\Omega W:ohm 1
kelvin|K K 1
celsius W:celsius 1
fahrenheit W:fahrenheit 1
dB|decibel W:db 1
rpm W:rpm 1
atm M1L-1T-2 101325000
bar M1L-1T-2 100000000
mph L1T-1 0.44704
kph|kmh|kmph L1T-1 5/18
knot L1T-1 463/900
mpg L-2 1609.344/0.003785411784
degree|deg|\\degree|°|度 angle 1
arcminute angle 1/60
arcsecond angle 1/3600
revolution|turn angle 360
unit|units W:unit 1
$|dollar|usd|buck $ 1
cent|¢ $ 0.01
€|euro|eur € 1
£|gbp £ 1
¥|yen|jpy ¥ 1
₹|rupee|inr|rs ₹ 1
₩|won|krw ₩ 1
₽|ruble|rub|руб ₽ 1
yuan|rmb|cny|元 yuan 1
franc|chf chf 1
peso peso 1
₪ ₪ 1
pence|pennies|penny W:penny 1
person|people W:person 1
man|men W:man 1
woman|women W:woman 1
child|children W:child 1
mouse|mice W:mouse 1
sheep W:sheep 1
fish W:fish 1
time|times W:time 1
"""
"""Names, dimensions, size."""
_ONLY_GAP = word_set("m g s l L h d A N W J V B K in min")
"""Symbols that count as variables unless a space precedes them."""
_NO_NOUNS = word_set(
    """
    plus minus times is was has does his hers its this thus yes versus less unless always perhaps whereas besides
    thousands hundreds millions billions trillions dozens scores halves thirds quarters fourths fifths sixths sevenths
    eighths ninths tenths hundredths thousandths tens ones twos threes fours fives sixes hundredweights pairs couples
    digits decimals equals makes gives becomes means squares cubes powers roots radians percents ks as us vs ms ps
    solutions answers options choices others possibilities values cases numbers results guesses
    negatives opposites reciprocals multiples inverses moles 十 百 千 万 亿 不 没 或 не или
    """
)
_ADJECTIVES = word_set(
    """
    red green blue yellow white black brown orange pink purple big small large little old new total whole full
    empty different distinct possible ways such remaining baseball basketball football chocolate gold
    silver ice cream school birthday paper plastic toy candy trading movie comic math
    """
)
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_REMARKS = (["in", "total"], ["total"], ["altogether"], ["in", "all"], ["left"], ["remaining"], ["old"], ["each"],
            ["long"], ["tall"], ["wide"], ["high"], ["deep"], ["away"])  # fmt: skip
"""Words after a unit that do not change it."""
_AREAS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}


def ends_expression(run: Sequence[Token], place: int) -> bool:
    """Tell whether a unit that ends the answer begins here."""
    try:
        unit_of(run[place:])
    except Unreadable:
        return False
    return True


def unit_of(run: Sequence[Token]) -> tuple[int, Unit | None]:
    """Return all tokens after a number as a factor (million) and a unit."""
    run = _without_fraction(run)
    words = [token for token in run if token.text not in ("{", "}")]
    if len(words) > 2 and (words[0].text, words[-1].text) in (("(", ")"), ("[", "]")):
        words = [replace(words[1], gap=True), *words[2:-1]]
    words = words[1:] if len(words) == 2 and words[0].text == "US" else words
    if not words or len(words) > 14:
        raise Unreadable("no unit")
    scale = _SCALES.get(words[0].text.lower(), 1)
    words = words[1:] if scale > 1 else words
    for remark in _REMARKS:
        if len(words) >= len(remark) and [word.text.lower() for word in words[-len(remark) :]] == remark:
            words = words[: -len(remark)]
            break
    return scale, _unit_of(words) if words else None


def _without_fraction(run: Sequence[Token]) -> Sequence[Token]:
    r"""`\frac{m}{s}` as m / s."""
    texts = [token.text for token in run]
    if texts[:2] != ["\\frac", "{"] or texts.count("{") != 2 or texts[-1] != "}":
        return run
    middle = texts.index("}")
    return [*run[2:middle], Token("sign", "/", gap=False), *run[middle + 2 : -1]]


def _unit_of(words: Sequence[Token]) -> Unit:
    if [word.text.lower() for word in words] in (["%"], ["percent"], ["per", "cent"]):
        return PERCENT
    powers: dict[str, int] = defaultdict(int)
    factor: Node = ONE
    place, sign = 0, 1
    while place < len(words):
        if words[place].text == "per" or (words[place].text == "/" and place):
            sign, place = -1, place + 1
        elif words[place].text in ("*", "-") and place:
            place += 1
        unit, power, place = _one(words, place)
        for name, exponent in unit.dimensions:
            powers[name] += sign * power * exponent
        step: Node = unit.factor if power == 1 else Call("pow", (unit.factor, Num(Fraction(power))))
        factor = _times(factor, step) if sign == 1 else Call("div", (factor, step))
    return Unit(tuple(sorted((name, power) for name, power in powers.items() if power)), factor)


def _times(left: Node, right: Node) -> Node:
    return right if left == ONE else Call("mul", (left, right))


def _one(words: Sequence[Token], place: int) -> tuple[Unit, int, int]:
    """Return a unit with its power, and the place after it."""
    power = 1
    if place < len(words) and words[place].text.lower() in _AREAS:
        power, place = _AREAS[words[place].text.lower()], place + 1
        if place < len(words) and words[place].text == ".":
            place += 1
    if place >= len(words):
        raise Unreadable("a unit is missing")
    token = words[place]
    if token.text == "°" and place + 1 < len(words) and words[place + 1].text in ("C", "F"):
        name = {"C": "celsius", "F": "fahrenheit"}[words[place + 1].text]
        return table()[name], 1, place + 2
    if token.text.lower() in ("degrees", "degree", "deg") and place + 1 < len(words):
        name = {"c": "celsius", "f": "fahrenheit"}.get(words[place + 1].text.lower(), words[place + 1].text.lower())
        if name not in ("celsius", "fahrenheit"):
            raise Unreadable("degrees of what?")
        return table()[name], 1, place + 2
    unit = _known(token) if place == 0 and power == 1 else _known(replace(token, gap=True))
    if unit is None:
        return _nouns(words, place, power)
    place += 1
    if place + 1 < len(words) and words[place].text == "^":
        sign = -1 if words[place + 1].text == "-" else 1
        place += 1 if sign == 1 else 2
        if place >= len(words) or words[place].text not in ("1", "2", "3", "4"):
            raise Unreadable("a power of a unit")
        return unit, sign * int(words[place].text), place + 1
    if place < len(words) and words[place].text in _RAISED:
        return unit, _RAISED[words[place].text], place + 1
    return unit, power, place


def _known(token: Token) -> Unit | None:
    text = token.text
    if text in _ONLY_GAP and not token.gap and token.kind == "word":
        return None
    known = table()
    if text in known:
        return known[text]
    small = text.lower()
    if len(small) < 3:
        return known.get(small) if text in ("CM", "KM", "KG", "MM", "ML", "LB", "FT", "OZ", "HR", "MI") else None
    return known.get(small) or (known.get(small[:-1]) if small.endswith("s") else None)


def _nouns(words: Sequence[Token], place: int, power: int) -> tuple[Unit, int, int]:
    """Return counted things: one or two known adjectives, and a plural."""
    end = place
    while end < len(words) and words[end].text.lower() in _ADJECTIVES:
        end += 1
    if power != 1 or end >= len(words) or end - place > 2:
        raise Unreadable("an unknown unit")
    noun = words[end].text.lower()
    if not noun.isascii() and noun not in _NO_NOUNS:
        return Unit(((f"W:{noun}", 1),), ONE), 1, end + 1
    if words[end].kind != "word" or not words[end].gap or not words[place].gap:
        raise Unreadable("an unknown unit")
    unit = _known(words[end])
    if unit is None:
        if len(noun) < 4 or not noun.endswith("s") or noun.endswith("ss") or noun in _NO_NOUNS:
            raise Unreadable(f"the word '{noun}' after a number")
        unit = Unit(((f"W:{singular(noun)}", 1),), ONE)
    return unit, 1, end + 1


def singular(noun: str) -> str:
    """A plural noun in the singular."""
    if noun.endswith("ies"):
        return noun[:-3] + "y"
    return noun[:-2] if noun.endswith(("shes", "ches", "xes", "sses")) else noun[:-1]


def is_money(unit: Unit) -> bool:
    """Tell whether a unit is a currency."""
    return unit.dimensions[:1] in {table()[name].dimensions for name in ("$", "€", "£", "¥", "₹", "yuan")}


@cache
def table() -> dict[str, Unit]:
    """Return a mapping from names to units."""
    units: dict[str, Unit] = {}
    for row in _PREFIXED.strip().splitlines():
        symbol, names, dimension, size = row.split()
        for prefix, scale in _PREFIXES.items():
            units[prefix + symbol] = _unit(dimension, Fraction(size) * Fraction(scale))
        for prefix, scale in _SPELLED.items():
            for name in names.split("|"):
                units[prefix + name] = _unit(dimension, Fraction(size) * Fraction(scale))
    for row in _PLAIN.strip().splitlines():
        names, dimension, size = row.split()
        top, _, bottom = size.partition("/")
        for name in names.split("|"):
            units[name] = _unit(dimension, Fraction(top) / Fraction(bottom or 1))
    turn = Call("div", (Num(Fraction(180)), Const("pi")))
    units["rad"] = units["radian"] = Unit((("angle", 1),), turn)
    return units


def _unit(dimension: str, factor: Fraction) -> Unit:
    """Return a unit of one dimension (L, W:month), or of several with exponents (M1L2T-2)."""
    parts = re.findall(r"([LMT])(-?\d)", dimension)
    powers = sorted((name, int(power)) for name, power in parts) if parts else [(dimension, 1)]
    return Unit(tuple(powers), Num(factor))
