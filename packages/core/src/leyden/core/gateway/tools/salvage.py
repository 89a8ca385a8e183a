"""Salvage: extracts the tool call from a malformed forced answer.

The rules are the same for all families. The name is the forced one, or else the text in its place. The arguments are
the JSON object in their place, or else all text there up to the end mark of a call.
"""

import json
import re

from leyden.core.gateway.codec import Forced, ToolCall
from leyden.core.gateway.tools.json_text import leading_object, leading_string

_ARGUMENTS = re.compile(r'\s*,?\s*"(?:arguments|parameters)"\s*:')


def salvage_json(text: str, forced: Forced, *ends: str, stop: str = "") -> tuple[ToolCall, str]:
    """Return the call of a JSON format, and the text after the call.

    `text` continues an opening that ends before the arguments, or inside the quotes of the name if no name is forced.
    `ends` and `stop` are those of `salvage_arguments`.
    """
    if forced.name is not None:
        return salvage_arguments(forced.name, text, "}", *ends, stop=stop)
    written = leading_string(f'"{text}')
    if written is None:
        return ToolCall(name=text.strip(), arguments=""), ""
    name: str = json.loads(written).encode(errors="replace").decode()
    rest = text[len(written) - 1 :]
    key = _ARGUMENTS.match(rest)
    return salvage_arguments(name, rest[key.end() :] if key else rest, "}", *ends, stop=stop)


def salvage_arguments(name: str, text: str, *ends: str, stop: str = "") -> tuple[ToolCall, str]:
    """Return the call with the arguments at the beginning of `text`, and the text after the call.

    After an object, the marks `ends` are removed in order, as far as they are present. Arguments that are not an object
    end at `stop`; without `stop`, they are the whole text.
    """
    text = text.lstrip()
    arguments = leading_object(text)
    if arguments is None:
        arguments, stopped, rest = text.partition(stop) if stop else (text, "", "")
        return ToolCall(name=name, arguments=arguments.rstrip() if stopped else arguments), rest
    rest = text[len(arguments) :]
    for end in ends:
        rest = rest.lstrip().removeprefix(end)
    return ToolCall(name=name, arguments=arguments), rest
