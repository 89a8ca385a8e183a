"""The units of the customers' measures, and the tasks about them.

The held-out tasks have other numbers, other customers and other wordings than the training tasks.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Unit:
    """A unit that customers use, and the metric one in its place."""

    symbol: str
    metric: str
    metric_symbol: str
    convert: Callable[[float], float]


UNITS = {
    "miles": Unit("mi", "kilometres", "km", lambda value: value * 1.609344),
    "pounds": Unit("lb", "kilograms", "kg", lambda value: value * 0.45359237),
    "gallons": Unit("gal", "litres", "l", lambda value: value * 3.785411784),
    "feet": Unit("ft", "metres", "m", lambda value: value * 0.3048),
    "fahrenheit": Unit("°F", "celsius", "°C", lambda value: (value - 32) * 5 / 9),
}
WORDINGS = {
    False: ("It says {measure} in the manual. How much is that?", "I read {measure}. What is that here?"),
    True: ("What does {measure} come to where I live?", "Somebody wrote {measure} on the box; what is it for me?"),
}
"""Questions of the training tasks, and of the held-out tasks."""
CUSTOMERS = {False: ("Ada", "Emil", "Iris", "Otto", "Vera"), True: ("Hugo", "Lena", "Nora", "Paul")}
MEASURE = re.compile(rf"(-?\d+(?:\.\d+)?) ({'|'.join(UNITS)})\b")


def tasks(count: int, *, held_out: bool) -> list[dict[str, Any]]:
    """Return tasks; those of the held-out set have even tens, and those for training odd ones."""
    draw = random.Random(f"measures {held_out}")
    rows: list[dict[str, Any]] = []
    for number in range(count):
        name = list(UNITS)[number % len(UNITS)]
        value = 20 * draw.randrange(1, 40) + 10 * (not held_out) + draw.randrange(100) / 10
        measure = f"{value:.1f} {name}"
        rows.append(
            {
                "customer": draw.choice(CUSTOMERS[held_out]),
                "question": draw.choice(WORDINGS[held_out]).format(measure=measure),
                "answer": round(UNITS[name].convert(value), 1),
                "unit": UNITS[name].metric,
                "symbol": UNITS[name].metric_symbol,
            }
        )
    return rows
