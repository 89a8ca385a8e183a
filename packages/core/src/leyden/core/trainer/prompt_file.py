"""Prompt files: prompt components and their new texts as YAML, which a person can edit."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.errors import PromptError

HEADER = """\
Prompt components of an agent, found by `leyden prompts`. To replace one, give it a `new_text` with the same
variables; literal braces are doubled: {{ and }}. `text` is what the agent sends: leave it as it is. Use the file with
--prompts of `leyden dev`, `train`, `exec` and `gateway`. `leyden prompts try --b FILE` compares it with the agent's own
prompts, and `leyden prompts apply` prints what to change in the agent.
"""


class _Component(PromptComponent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A component as a file has it."""


def read_prompts(path: str | Path) -> PromptEdits:
    """Read a prompt file; raises PromptError, with the place in one line, for a file that cannot be used."""
    import yaml

    file = Path(path)
    try:
        found: Any = yaml.load(file.read_text(encoding="utf-8-sig"), _loader())
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise PromptError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    return edits_from(found, str(file))


def edits_from(found: Any, where: str) -> PromptEdits:
    """Return the prompt edits that plain values describe; raises PromptError that begins with `where`."""
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if fields.keys() != {"components"} or not isinstance(fields["components"], list):
        others = ", ".join(sorted(f"`{key}`" for key in fields.keys() - {"components"}))
        raise PromptError(
            f"{where} must hold a list `components`" + (f", and nothing else, not {others}" * bool(others))
        )
    given = cast("list[Any]", fields["components"])
    components = [_component(where, number, one) for number, one in enumerate(given, 1)]
    try:
        return PromptEdits(components=tuple(components))
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from None


def write_prompts(path: str | Path, edits: PromptEdits, notes: Sequence[str] = ()) -> None:
    """Write a prompt file with `notes` as comments; raises PromptError if it cannot be written."""
    try:
        Path(path).write_text(prompt_file(edits, notes), encoding="utf-8")
    except OSError as error:
        raise PromptError(f"{path} cannot be written: {error.strerror or error}") from None


def prompt_file(edits: PromptEdits, notes: Sequence[str] = ()) -> str:
    """Return the text of a prompt file. Texts of several lines are written as they are, line by line."""
    import yaml

    def text_node(dumper: Any, text: str) -> Any:
        # PyYAML escapes these line separators in double quotes only, and reads them as spaces elsewhere
        style = '"' if any(one in text for one in "\x85\u2028\u2029\ufeff") else "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(str, text_node)
    fields: list[dict[str, Any]] = [msgspec.to_builtins(component) for component in edits.components]
    comments = [*HEADER.splitlines(), *map(_one_line, notes)]
    body = yaml.dump({"components": fields}, Dumper=dumper, sort_keys=False, allow_unicode=True, width=10**9)
    return "".join(f"# {line}\n" for line in comments) + body


def _one_line(note: str) -> str:
    """Return a note as one printable line: the names of agents and tools in it may be any text."""
    return " ".join("".join(char if char.isprintable() else " " for char in note).split())


def _component(where: str, number: int, given: Any) -> PromptComponent:
    try:
        read = msgspec.convert(given, _Component)
    except msgspec.ValidationError as error:
        name: Any = cast("dict[str, Any]", given).get("name") if isinstance(given, dict) else None
        shown = f" {name!r}" if isinstance(name, str) else ""
        raise PromptError(f"{where}, component {number}{shown}: {error}") from None
    return PromptComponent(**msgspec.structs.asdict(read))


def _loader() -> Any:
    """Return a loader of plain values that refuses a key which a mapping has twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            keys: list[object] = [key.value for key, _ in node.value]
            twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
            if twice is not None:
                raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} occurs twice", node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader
