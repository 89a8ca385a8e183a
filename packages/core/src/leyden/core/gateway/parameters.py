"""Parameters: what the gateway does with each field of a request, in each dialect.

The fields come from the structs that parse requests, and from the sets of hints and refused fields beside them. This
module adds only which fields training overrides. `docs/wire.md` contains the table; `scripts/parameter_table.py` writes
it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

import msgspec
from msgspec import inspect

from leyden.core.gateway.anthropic import request as messages
from leyden.core.gateway.chat import request as chat
from leyden.core.gateway.completions import request as completions
from leyden.core.gateway.model_request import SamplingFields
from leyden.core.gateway.parameter_notes import NOTES
from leyden.core.gateway.responses import request as responses


class Effect(Enum):
    """What a field of a request does; the value is its name in the table."""

    HONOURED = "yes"
    OVERRIDDEN = "outside training"
    """In training, the policy's own sampling applies instead."""
    RECORDED = "recorded"
    """The field is accepted and recorded, and has no effect."""
    REFUSED = "refused"
    """Values that would have an effect are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """The fields of one dialect's requests."""

    name: str
    """Name of the API."""
    body: type[msgspec.Struct]
    hints: frozenset[str]
    """Fields without an effect; a part of a field is written `field.part`."""
    refused: frozenset[str]
    """Fields of which only neutral values are accepted."""

    def effects(self) -> Iterator[tuple[str, Effect]]:
        """Yield every field with what it does; a field that is an object yields its parts instead."""
        for name in (*_fields(self.body), *sorted((self.hints | self.refused) - set(_fields(self.body)))):
            yield name, self._effect(name)

    def _effect(self, name: str) -> Effect:
        if name in self.refused:
            return Effect.REFUSED
        if name in self.hints:
            return Effect.RECORDED
        return Effect.OVERRIDDEN if name in OVERRIDDEN else Effect.HONOURED


KEPT_IN_TRAINING = frozenset({
    "guided_choice", "guided_grammar", "guided_json", "guided_regex", "stop_token_ids", "structured_outputs",
})  # fmt: skip
"""Fields of `SamplingFields` that shape the answer, and therefore apply in training as well."""
OVERRIDDEN = frozenset(SamplingFields.__struct_fields__) - KEPT_IN_TRAINING

DIALECTS: Mapping[str, RequestFields] = {
    "chat": RequestFields(
        name="Chat Completions", body=chat.ChatBody, hints=chat.HINTS, refused=frozenset(chat.NEUTRAL)
    ),
    "completions": RequestFields(
        name="Completions",
        body=completions.CompletionsBody,
        hints=completions.HINTS,
        refused=completions.NOT_AVAILABLE,
    ),
    "responses": RequestFields(
        name="Responses",
        body=responses.ResponsesBody,
        hints=responses.HINTS | responses.REPEATED,
        refused=frozenset(responses.NEUTRAL),
    ),
    "messages": RequestFields(
        name="Messages",
        body=messages.MessagesBody,
        hints=messages.HINTS | messages.HINTED_PARTS,
        refused=frozenset(messages.NEUTRAL),
    ),
}
"""The dialects by the names under which their calls are recorded."""

BEGIN = "<!-- Table of parameters, written by scripts/parameter_table.py -->"
END = "<!-- End of the table of parameters -->"


@cache
def parameters() -> Mapping[str, Mapping[str, Effect]]:
    """Return what each field does, by its name and then by dialect; dialects without the field have no entry."""
    found: dict[str, dict[str, Effect]] = {}
    for dialect, fields in DIALECTS.items():
        for name, effect in fields.effects():
            found.setdefault(name, {})[dialect] = effect
    return dict(sorted(found.items()))


def table() -> str:
    """Return the table in Markdown, with the marks around it."""
    names = [fields.name for fields in DIALECTS.values()]
    lines = [f"| field | {' | '.join(names)} | |", "|" + "---|" * (len(names) + 2)]
    for name, effects in parameters().items():
        cells = (effects[dialect].value if dialect in effects else "" for dialect in DIALECTS)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {NOTES.get(name, '')} |")
    return "\n".join([BEGIN, "", *lines, "", END])


def _fields(body: type[msgspec.Struct]) -> list[str]:
    found = inspect.type_info(body)
    assert isinstance(found, inspect.StructType)
    return [name for field in found.fields for name in _parts(field)]


def _parts(field: inspect.Field) -> list[str]:
    """Return the name of a field, or those of its parts if it is an object with known fields and no list."""
    types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    parts = [part.name for kind in types if isinstance(kind, inspect.StructType) for part in kind.fields]
    return [f"{field.encode_name}.{part}" for part in parts] or [field.encode_name]
