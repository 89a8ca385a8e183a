"""A scripted reflection model: it reads complaints in a request and changes a prompt, sometimes for the worse.

Of ten proposals with feedback, five add an instruction that answers a complaint, and one adds two. The others add an
instruction that is not understood, a harmful one, or a single answer learned by heart, or write the whole prompt anew
and so lose its variables and earlier instructions. Without feedback it guesses: each proposal adds three instructions.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock

from measures import MEASURE, UNITS

GOOD = {
    "is not in the right metric unit": ("Convert the measure to the metric system.", "Give metric units."),
    "does not have one decimal": ("Round to one decimal.", "Write the number with one decimal."),
    "is not written as its symbol": ("Write the symbol of the unit.", "Use the unit's symbol."),
    "does not begin with 'Answer:'": ("Begin with 'Answer:'.", "Put 'Answer:' at the beginning."),
    "has more than the measure": ("Write only the measure.", "Give only the measure, without a sentence."),
}
"""Instructions that answer a complaint, which is known by these words."""
USELESS = ("Be careful.", "Mind the units.", "Answer as an expert.", "Think about what the customer needs.")
HARMFUL = ("Explain how you know it.", "Greet the customer.", "Round to two decimals.", "Write units in full.")
SEED = "REFLECTION_SEED"
"""Environment variable with the seed."""
FORMS = (
    re.compile(r"```\n?(.*?)\n?```", re.DOTALL),
    re.compile(r"## The text\n\n(.*?)\n\n## The criticism\n\n", re.DOTALL),
)
"""Where a request has the current text: GEPA's and the baseline's, and that of an edit by APO."""

_seen: Counter[str] = Counter()
_lock = Lock()


def propose(messages: Sequence[Mapping[str, str]]) -> str:
    """Return an answer in the form that the request wants; the same request gets another answer the second time.

    A request for a textual gradient gets the complaints that it shows.
    """
    conversation = "\n".join(message["content"] for message in messages)
    request = messages[0]["content"]
    with _lock:
        _seen[conversation] += 1
        draw = random.Random(f"{os.environ.get(SEED, '0')}|{_seen[conversation]}|{conversation}")
    complaints = [words for words in GOOD if words in request]
    found = next(filter(None, (form.search(request) for form in FORMS)), None)
    if found is None:
        measure = MEASURE.search(request)
        return f"What is wrong: {'; '.join(complaints)}. An example: {measure[0] if measure else 'none'}."
    text = changed(found[1], request, complaints, draw)
    return f"<new_prompt>\n{text}\n</new_prompt>" if "<new_prompt>" in request else f"This is better.\n```\n{text}\n```"


def changed(current: str, request: str, complaints: list[str], draw: random.Random) -> str:
    """Return a prompt that was changed in one of the ways above."""
    if not complaints:
        pool = [draw.choice(texts) for texts in GOOD.values()] + [*USELESS, *HARMFUL]
        return " ".join([current, *draw.sample(pool, 3)])
    match draw.randrange(10):
        case 0 | 1 | 2 | 3 | 4:
            added = [draw.choice(GOOD[draw.choice(complaints)])]
        case 5:
            added = [draw.choice(GOOD[words]) for words in draw.sample(complaints, min(2, len(complaints)))]
        case 6:
            added = [draw.choice(USELESS)]
        case 7:
            added = [draw.choice(HARMFUL)]
        case 8:
            added = [_by_heart(request)]
        case _:
            return f"You are a helpful assistant. {draw.choice(GOOD[draw.choice(complaints)])}"
    return " ".join([current, *added])


def _by_heart(request: str) -> str:
    found = MEASURE.search(request)
    if found is None:
        return USELESS[0]
    unit = UNITS[found[2]]
    return (
        f"If the message has {found[0]}, reply with Answer: {unit.convert(float(found[1])):.1f} {unit.metric_symbol}."
    )
