"""A local model that follows the instructions in its prompt, and is deterministic.

It answers questions about measures. What it does without an instruction is not what the reward function expects. It
follows an instruction, harmful ones included, for nine questions of ten; which ones depends on the whole prompt. If two
instructions contradict each other, it follows the last. It does not calculate while it edits.
"""

import re
import zlib
from typing import Any

from measures import MEASURE, UNITS

OBEDIENCE = 0.9
INSTRUCTIONS = {
    "metric": r"metric",
    "one decimal": r"one decimal",
    "two decimals": r"two decimals",
    "symbol": r"symbol",
    "words": r"units? in full",
    "marked": r"'Answer:'",
    "greeted": r"greet",
    "bare": r"only the measure",
    "explained": r"explain",
}
"""What it understands: a word or two of each instruction."""
CONTRARY = {"two decimals": "one decimal", "words": "symbol", "explained": "bare", "greeted": "marked"}
BY_HEART = re.compile(r"If the message has (-?\d+\.\d \w+), reply with ([^.]+\.\d [^.]+)\.")
DRAFT = re.compile(r"(-?\d+(?:\.\d+)?) ([A-Za-z°]+)")
KNOWN = {name for key, unit in UNITS.items() for name in (key, unit.symbol, unit.metric, unit.metric_symbol)}


def answer(body: dict[str, Any]) -> str:
    """Return the reply to a chat completion request."""
    system = "\n".join(_text(message) for message in body["messages"] if message["role"] in ("system", "developer"))
    user = "\n".join(_text(message) for message in body["messages"] if message["role"] not in ("system", "developer"))
    lower = system.lower()
    if "copy the measure" in lower:
        found = MEASURE.search(user)
        return found[0] if found else "There is no measure."
    followed = _followed(system, user)
    if "edit" in lower:
        drafts = [found for found in DRAFT.finditer(user) if found[2] in KNOWN]
        return _reply(drafts[-1][0] if drafts else "nothing", followed)
    for learned, reply in BY_HEART.findall(system):
        if learned in user:
            return reply
    found = MEASURE.search(user)
    return _reply(_measure(float(found[1]), found[2], followed) if found else "nothing", followed)


def _followed(system: str, user: str) -> set[str]:
    last = {
        name: max((found.start() for found in re.finditer(pattern, system, re.IGNORECASE)), default=-1)
        for name, pattern in INSTRUCTIONS.items()
    }
    for name, other in CONTRARY.items():
        last[name if last[name] < last[other] else other] = -1
    return {
        name
        for name, place in last.items()
        if place >= 0 and zlib.crc32(f"{name}|{user}|{system}".encode()) / 2**32 < OBEDIENCE
    }


def _measure(value: float, name: str, followed: set[str]) -> str:
    unit = UNITS[name]
    shown, written, symbol = value, name, unit.symbol
    if "metric" in followed:
        shown, written, symbol = unit.convert(value), unit.metric, unit.metric_symbol
    decimals = 1 if "one decimal" in followed else 2 if "two decimals" in followed else 4
    return f"{shown:.{decimals}f} {symbol if 'symbol' in followed else written}"


def _reply(measure: str, followed: set[str]) -> str:
    text = measure if "bare" in followed else f"I think that {measure} is what you are looking for."
    if "marked" in followed:
        text = f"Answer: {text}"
    if "greeted" in followed:
        text = f"Dear customer, {text}"
    return f"{text} I looked it up in a table." if "explained" in followed else text


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content or ())
