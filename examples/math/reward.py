"""The reward of one answer: 1 for the right number behind the last `Answer:` of the agent's last message, else 0."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

TOLERANCE = Fraction(1, 100)
"""Relative; that of the evaluation of Calc-X (Kadlčík et al. 2023)."""
LONGEST = 60
"""Characters of an answer with its unit; a longer one is wrong."""

ANSWER = re.compile(r"Answer:[ \t]*([^\n]*)")
OPTION = re.compile(r"\(?\s*([A-Za-z])\s*\)?\.?")
GROUPED = r"\d{1,3}(?:[,_]\d{3})+"
DIGITS = rf"(?:{GROUPED}|\d+)"
NUMBER = rf"(?:{DIGITS}(?:\.\d+)?|\.\d+)"
AMOUNT = re.compile(
    r"[$€£]?\s?(?P<sign>[-−+]?)\s?[$€£]?"
    # Calc-X writes 1000/3 as 1_000/3. In a mixed number, such as 1_2/3, no group of three digits follows the `_`.
    rf"(?:(?!{GROUPED}\s?/)(?P<whole>{DIGITS})[ _](?={DIGITS}\s?/))?"
    rf"(?P<above>{NUMBER})(?:[eE](?P<power>[-+]?\d{{1,2}})(?!\d))?"
    rf"(?:\s?/\s?(?P<below>{NUMBER}))?"
    r"\s?(?P<percent>%|(?i:per\s?cents?|pct)\b)?",
    re.ASCII,
)
IN_UNITS = frozenset(" ./²³°$€£")
"""What a unit behind a number may contain besides letters."""
WORD = re.compile(r"[^\W\d_]+")
SCALE_NAMES = """
dozen score gross hundred thousand million billion trillion quadrillion lakh lac crore
half third fourth fifth sixth seventh eighth ninth tenth hundredth thousandth millionth billionth
percent pct percentage
"""
OTHER_NAMES = "halves quarter k b e mn mln mio mrd bn bln tn trn doz dz permille mille promille bp bps basis ppm pi π"
SCALES = frozenset([*OTHER_NAMES.split(), *(name + end for name in SCALE_NAMES.split() for end in ("", "s"))])
"""Words that would change the number they follow; `quarters` are also coins, and count as a unit."""
CAPITALS = frozenset({"M", "MM", "T"})
"""The same, in capitals only: `5 M` are five million, `5 m` are metres."""


@dataclass(frozen=True)
class Value:
    """A number that was read: its value, and whether it was written as a whole number or a fraction."""

    number: Fraction
    exact: bool


def value_of(text: str) -> Value | None:
    """Read a number with separators, as decimal, fraction or percentage, maybe with a unit; None for any other text."""
    text = text.partition(" = around ")[0].strip()  # Calc-X writes a fraction so: 2/3 = around 0.666667
    match = AMOUNT.match(text) if len(text) <= LONGEST else None
    if match is None or not is_unit(text[match.end() :]):
        return None
    above, below = read(match["above"]), read(match["below"] or "1")
    if below == 0:
        return None
    if match["whole"] and not 0 < above < below:  # no mixed number, but maybe 1 000/3 with a space in the thousands
        return None
    number = above * Fraction(10) ** int(match["power"] or 0) / below + read(match["whole"] or "0")
    number = number / 100 if match["percent"] else number
    exact = "." not in match["above"] + (match["below"] or "") and match["power"] is None
    return Value(-number if match["sign"] in {"-", "−"} else number, exact)


def read(digits: str) -> Fraction:
    """The value of digits with separators of thousands."""
    return Fraction(digits.replace(",", "").replace("_", ""))


def is_unit(rest: str) -> bool:
    """Whether the text behind a number leaves the number as it is."""
    words = WORD.findall(rest)
    if any(word in CAPITALS or word.lower() in SCALES for word in words):
        return False
    return all((letter.isalpha() and not letter.isnumeric()) or letter in IN_UNITS for letter in rest)


def option_of(text: str) -> str | None:
    """The letter of an option, as `B` or `(B)`; None for any other text."""
    match = OPTION.fullmatch(text.strip())
    return match[1].upper() if match else None


def is_close(answer: Value, expected: Value) -> bool:
    """Whether two numbers are the same within the tolerance of Calc-X, relative to the larger one."""
    return abs(answer.number - expected.number) <= TOLERANCE * max(abs(answer.number), abs(expected.number))


def is_right(answer: Value, expected: Value) -> bool:
    """Equal where the expected number is whole, or where both are fractions; else close."""
    if expected.number.denominator == 1 or (answer.exact and expected.exact):
        return answer.number == expected.number
    return is_close(answer, expected)


def last_answer(result: Any) -> str:
    """The text behind the last `Answer:` of the last message (`result` is AutoGen's `TaskResult`)."""
    content = result.messages[-1].content if result.messages else None
    found = ANSWER.findall(content) if isinstance(content, str) else []
    return found[-1] if found else ""


def compared(task: dict[str, Any], result: Any, same: Callable[[Value, Value], bool]) -> float:
    """1 if the answer and `task["answer"]` are the same option, or numbers that are the `same`."""
    expected, answer = str(task.get("answer", "")).strip(), last_answer(result)
    if (option := option_of(expected)) is not None:
        return float(option_of(answer) == option)
    if (number := value_of(expected)) is None:
        raise ValueError(f"the task's answer is neither a number nor an option: {expected[:60]!r}")
    given = value_of(answer)
    return float(given is not None and same(given, number))


def score(task: dict[str, Any], result: Any) -> float:
    """1 for the right answer: whole numbers and fractions must be exact, decimals within 1 %."""
    return compared(task, result, is_right)


def score_calc_x(task: dict[str, Any], result: Any) -> float:
    """The same as the evaluation of Calc-X compares: 1 % for every number, so 101 counts as 100."""
    return compared(task, result, is_close)
