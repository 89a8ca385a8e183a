"""Answer format: reads the format that a request requires of the answer, such as a JSON schema.

Chat Completions and Responses name it `response_format` and `text.format`. vLLM's own parameters are read as well.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from leyden.core.errors import GrammarError
from leyden.core.gateway.model_request import SamplingFields
from leyden.core.gateway.refusal import Refusal, invalid, unsupported
from leyden.core.grammar.rules import ANY_OBJECT, AnswerFormat

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's former parameters, and the keys of `structured_outputs` that replaced them."""
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """A named JSON schema.

    Without `strict`, a provider follows it as well as it can: limits of which no grammar can be made are left out.
    """

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


def read_response_format(value: Mapping[str, Any] | None) -> AnswerFormat | None:
    """Return the format of Chat Completions' `response_format`; None for plain text. Raises Refusal if invalid."""
    named = None if value is None else value.get("json_schema")
    return _read_format(value, named, "response_format", "response_format.json_schema", "response_format")


def read_text_format(value: Mapping[str, Any] | None) -> AnswerFormat | None:
    """Return the format of Responses' `text.format`; None for plain text. Raises Refusal if invalid."""
    named = {key: one for key, one in (value or {}).items() if key != "type"}
    return _read_format(value, named, "text.format", "text.format", "text.format.type")


def _read_format(
    value: Mapping[str, Any] | None, named: object, where: str, schema_at: str, kind_at: str
) -> AnswerFormat | None:
    """Return the format; `named` is its schema with the name, and the last arguments are names of fields."""
    kind = None if value is None else value.get("type")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return AnswerFormat(kind="json", text=ANY_OBJECT, field=where)
    if kind == "json_schema":
        return _named(named, schema_at)
    raise _unknown_kind(kind, kind_at)


def _unknown_kind(kind: object, where: str) -> Refusal:
    shown = str(kind)[:60]
    return invalid(f"Invalid value: {shown!r}. Supported values are: 'json_object', 'json_schema', and 'text'.", where)


def read_guided(fields: SamplingFields) -> AnswerFormat | None:
    """Return the format that vLLM's parameters name: `structured_outputs`, or one of `GUIDED`. None without them."""
    given = {name: value for name in GUIDED if (value := getattr(fields, name)) is not None}
    outputs = fields.structured_outputs
    if outputs is not None:
        given |= {f"structured_outputs.{key}": value for key, value in outputs.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise invalid(f"Only one format can be required, but the request has {', '.join(sorted(given))}.")
    ((where, value),) = given.items()
    return _guided(where, value)


def one_format(where: str, *formats: AnswerFormat | None) -> AnswerFormat | None:
    """Return the only format of a request; raises Refusal for several.

    The format is checked later, by `check_format`, because that takes long for some formats.
    """
    given = [one for one in formats if one is not None]
    if len(given) > 1:
        raise invalid("Only one format of the answer can be required.", where)
    return given[0] if given else None


def check_format(found: AnswerFormat) -> None:
    """Raise Refusal for a format that no grammar can express. This may take a second, so a thread calls it."""
    try:
        found.check()
    except GrammarError as error:
        shown = f"Invalid '{found.field}': no answer can be limited to this format ({error})."
        raise Refusal(400, shown, param=found.field, code="invalid_value") from None


def _named(value: object, where: str) -> AnswerFormat:
    try:
        given = msgspec.convert(value, JsonSchemaFormat)
    except msgspec.ValidationError as error:
        raise invalid(f"Invalid '{where}': {error}", where) from None
    if not given.name or len(given.name) > 64 or not set(given.name) <= _NAME_CHARACTERS:
        message = f"Invalid '{where}.name': expected up to 64 letters, digits, underscores and dashes."
        raise invalid(message, f"{where}.name")
    if given.schema is None:
        raise Refusal(
            400, f"Missing required parameter: '{where}.schema'.", param=where, code="missing_required_parameter"
        )
    text = _encoded(given.schema, where)
    lenient = given.strict is not True
    return AnswerFormat(kind="json", text=text, field=where, lenient=lenient)


def _encoded(schema: dict[str, Any], where: str) -> str:
    try:
        return msgspec.json.encode(schema).decode()
    except RecursionError:
        raise invalid(f"Invalid '{where}': it is nested too deeply.", where) from None


def _guided(where: str, value: object) -> AnswerFormat:
    kind = GUIDED.get(where, where.removeprefix("structured_outputs."))
    if kind == "json_object" and value is True:
        return AnswerFormat(kind="json", text=ANY_OBJECT, field=where)
    if kind == "json" and isinstance(value, str | dict):
        text = value if isinstance(value, str) else _encoded(cast("dict[str, Any]", value), where)
        try:
            msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise invalid(f"Invalid '{where}': {error}", where) from None
        return AnswerFormat(kind="json", text=text, field=where)
    if kind in ("regex", "grammar") and isinstance(value, str) and value:
        return AnswerFormat(kind="regex" if kind == "regex" else "grammar", text=value, field=where)
    if kind == "choice" and isinstance(value, list) and value:
        choices = cast("list[object]", value)
        if all(isinstance(choice, str) and choice for choice in choices):
            return AnswerFormat(kind="choice", text=msgspec.json.encode(choices).decode(), field=where)
    raise unsupported(where, "is not available with this value; use json, regex, choice or grammar.")
