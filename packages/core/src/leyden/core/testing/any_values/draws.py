"""`Draws`: random recipes of the same values and spans as `any_values` and `any_spans`.

It draws a hundred times as fast as Hypothesis, for long campaigns, but cannot shrink failures.
"""

import random
import struct
from typing import Any

from leyden.core.data.span import SpanEvent, SpanLink, SpanStatus
from leyden.core.testing.any_values.leaves import HEAVY, leaves
from leyden.core.testing.any_values.records import makers
from leyden.core.testing.any_values.strategies import AnySpan, AnyValue, Part

_HOLDERS = ("dict", "list", "tuple")
_LIGHT = 40
"""Weight of a light value in comparison with a heavy one."""
_CODES = ("unset", "ok", "error")


class Draws:
    """Draws recipes; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._records = len(makers())
        names = sorted(leaves(blocking=False))
        self._names = [*(name for name in names if name not in HEAVY)] * _LIGHT + [n for n in names if n in HEAVY]
        self.values = 0
        """Number of drawn values, without values inside others."""

    def value(self) -> AnyValue:
        """Draw a value."""
        self.values += 1
        return self._value(12)

    def span(self) -> AnySpan:
        """Draw a span with arbitrary values in every field except its identity; its status is a `SpanStatus`."""
        draw = self._random
        fields: dict[str, Any] = {
            "sequence_id": 0,
            "trace_id": "0" * 31 + "1",
            "parent_id": draw.choice((None, "b" * 16, self.value())),
            "name": self._or_text(),
            "status": Part(SpanStatus, {"code": draw.choice(_CODES), "description": self.value()}),
            "attributes": self._attributes(),
            "events": [self._event() for _ in range(draw.randrange(3))] if draw.random() < 0.9 else self.value(),
            "links": [self._link() for _ in range(draw.randrange(2))] if draw.random() < 0.9 else self.value(),
            "start_time": self._time(),
            "end_time": self._time(),
            "resource": self._attributes(),
        }
        return AnySpan(fields)

    def pick(self, several: Any) -> Any:
        """Return one of `several`."""
        return self._random.choice(several)

    def text(self, most: int = 20) -> str:
        """Draw text of any code points, lone surrogates included."""
        draw = self._random
        tops = [draw.choice((0x7F, 0x7FF, 0xFFFF, 0x10FFFF)) for _ in range(draw.randrange(most))]
        return "".join(chr(draw.randint(0, top)) for top in tops)

    def _attributes(self) -> Any:
        if self._random.random() < 0.1:
            return self.value()
        return {self.text(8): self.value() for _ in range(self._random.randrange(5))}

    def _event(self) -> Any:
        if self._random.random() < 0.2:
            return self.value()
        return Part(SpanEvent, {"name": self._or_text(), "time": self._time(), "attributes": self._attributes()})

    def _link(self) -> Any:
        if self._random.random() < 0.2:
            return self.value()
        ids = {"trace_id": self._or_text(), "span_id": self._or_text()}
        return Part(SpanLink, {**ids, "attributes": self._attributes()})

    def _or_text(self) -> Any:
        return self.text(8) if self._random.random() < 0.5 else self.value()

    def _time(self) -> Any:
        return self._random.uniform(0, 2e9) if self._random.random() < 0.6 else self.value()

    def _value(self, left: int) -> AnyValue:
        draw = self._random
        what = draw.random()
        if left <= 1 or what < 0.5:
            return AnyValue(draw.choice(self._names))
        if what < 0.7:
            return AnyValue("plain", (self._scalar(),))
        if what < 0.85:
            return AnyValue(f"record {draw.randrange(self._records)}", (self._value(left // 2),))
        return AnyValue(draw.choice(_HOLDERS), tuple(self._value(left // 4) for _ in range(draw.randrange(5))))

    def _scalar(self) -> Any:
        draw = self._random
        kind = draw.randrange(6)
        if kind == 0:
            return draw.choice((None, True, False, float("nan"), float("inf"), -float("inf"), -0.0))
        if kind == 1:
            return draw.getrandbits(draw.randrange(1, 80)) * draw.choice((1, -1))
        if kind == 2:
            return struct.unpack("<d", draw.randbytes(8))[0]
        return draw.randbytes(draw.randrange(20)) if kind == 3 else self.text()
