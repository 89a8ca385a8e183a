"""Where in a run file an error is: the line of the setting that a message of `leyden train` names."""

import re
from collections.abc import Iterator
from typing import Any, cast

import yaml

SETTING = re.compile(r"^the run file: (?:there is no setting )?([A-Za-z_][\w.\[\]-]*)")
OF_ALGORITHM = re.compile(r"^configuration of algorithm .*?(?:field `([\w.]+)`|'(?:: \w+)*: ([\w.\[\]]+): )")
FIRST_WORD = re.compile(r"^(?:unknown |--)?([a-z][\w-]+)")
SHORTEST = 5
"""Characters that a value needs so that it is looked for in a message."""


def line_of(text: str, message: str) -> int | None:
    """Return the line, from 1, of a run file's `text` that a message is about; None if that is not known."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return None if mark is None else min(mark.line, max(0, len(text.splitlines()) - 1)) + 1
    except yaml.YAMLError:  # such as a character that YAML does not allow
        return None
    if not isinstance(root, yaml.MappingNode):
        return None
    if named := SETTING.match(message):
        return _line_in(root, _parts(named[1]))
    if named := OF_ALGORITHM.match(message):
        return _line_in(root, ["algorithm_config", *_parts(named[1] or named[2])])
    first = FIRST_WORD.match(message)
    found = None if first is None else _line_in(root, [first[1].replace("-", "_")])
    return found or _line_of_value(root, message)


def _parts(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", path)


def _line_in(root: yaml.Node, path: list[str]) -> int | None:
    """Return the line of the innermost setting on a path that there is; None if there is not even the first."""
    line: int | None = None
    node: yaml.Node = root
    for part in path:
        inner: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(inner):
            node = cast("yaml.Node", inner[int(part)])
            line = _line(node)
            continue
        pairs: list[tuple[yaml.Node, yaml.Node]] = inner if isinstance(node, yaml.MappingNode) else []
        found = next((pair for pair in pairs if pair[0].value == part), None)
        if found is None:
            return line
        line, node = _line(found[0]), found[1]
    return line


def _line_of_value(root: yaml.Node, message: str) -> int | None:
    """Return the line of the longest value that a message repeats, such as the name of a file."""
    values = [one for one in _scalars(root) if len(one.value) >= SHORTEST and one.value in message]
    return _line(max(values, key=lambda one: len(one.value))) if values else None


def _scalars(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Yield the values, each once: aliases may repeat a part of the file, or contain themselves."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
