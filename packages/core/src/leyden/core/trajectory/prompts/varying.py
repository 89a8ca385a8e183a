"""Texts of a call that are known to vary: the texts of its task, the date and time of the call, and identifiers."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

SHORTEST_VALUE, SHORTEST_IN_USER_MESSAGE = 8, 2
"""Fewest characters of a task's text that is looked for; a shorter one may be a word of the agent's own text."""
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
_TIME = rf"(?:[T ,]{{1,3}}(?:at )?\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?{_ZONE})?"
"""Time of day after a date."""
_CLOCK = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?"
_IDENTIFIER = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{16,64}"
"""A UUID, or a long hexadecimal number."""
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "December",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def task_values(tasks: Sequence[Any]) -> list[list[str]]:
    """Return the texts in each task; not those that several different tasks have, which need not vary."""
    texts = [tuple(sorted(set(_texts(task)))) for task in tasks]
    counts = Counter(text for of_task in set(texts) for text in of_task)
    return [[text for text in of_task if counts[text] == 1] for of_task in texts]


def varying_values(text: str, of_task: Sequence[str], at: float, *, is_user: bool) -> list[str]:
    """Return what of a text is known to vary, where the call began at Unix time `at`."""
    least = SHORTEST_IN_USER_MESSAGE if is_user else SHORTEST_VALUE
    found = [value for value in of_task if len(value) >= least and value in text]
    pattern = rf"(?<!\w)(?:{_IDENTIFIER}|{_CLOCK}|(?:{'|'.join(_dates(at))}){_TIME})(?!\w)"
    return [*found, *(match[0] for match in re.finditer(pattern, text))]


def _dates(at: float) -> Iterator[str]:
    """Yield patterns of the day of the call, and of the days beside it: agents have their own time zones."""
    for days in (-1, 0, 1):
        day = datetime.fromtimestamp(at, UTC) + timedelta(days=days)
        year, month, weekday = day.year, _MONTHS[day.month - 1], _DAYS[day.weekday()]
        names, number = rf"(?:{month}|{month[:3]}\.?)", rf"0?{day.day}(?:st|nd|rd|th)?"
        start = rf"(?:(?:{weekday}|{weekday[:3]}\.?),? )?"
        yield rf"{year}[-/.]{day.month:02}[-/.]{day.day:02}"
        yield rf"0?{day.month}/0?{day.day}/{year}"
        yield rf"0?{day.day}[./-]0?{day.month}[./-]{year}"
        yield rf"{start}{names} {number},? {year}"
        yield rf"{start}{number}\.? {names},? {year}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.strip():
            yield value.strip()
    elif isinstance(value, Mapping):
        for member in cast("Mapping[Any, Any]", value).values():
            yield from _texts(member)
    elif isinstance(value, list | tuple):
        for member in cast("Sequence[Any]", value):
            yield from _texts(member)
