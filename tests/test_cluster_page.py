"""The manifests of `docs/cluster.md` parse, and what they call exists. No cluster is asked: none ran them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml

from leyden.core.cli.main import app

PAGE = Path(__file__).parents[1] / "docs/cluster.md"
TEXT = PAGE.read_text()
MANIFESTS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)]


def commands() -> Iterator[list[str]]:
    """Every `leyden` command of the page, in manifests and consoles."""
    for manifest in MANIFESTS:
        for container in containers(manifest):
            yield from [container["command"]] if "command" in container else []
        if "entrypoint" in manifest["spec"]:
            yield shlex.split(manifest["spec"]["entrypoint"])
    for block in re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition("$ ")[2])
            if "leyden" in words:
                yield words[words.index("leyden") :]


def containers(manifest: Any) -> Iterator[dict[str, Any]]:
    """The containers in a manifest, wherever they stand."""
    for pod in pods(manifest):
        yield from pod["containers"]


def pods(node: Any) -> Iterator[dict[str, Any]]:
    """The pods' specifications in a manifest, or in a part of one."""
    found = cast("dict[str, Any]", node) if isinstance(node, dict) else {}
    if "containers" in found:
        yield found
    parts = [*found.values(), *(cast("list[Any]", node) if isinstance(node, list) else [])]
    for part in parts:
        yield from pods(part)


def test_there_is_something_to_check() -> None:
    assert [manifest["kind"] for manifest in MANIFESTS] == ["RayJob", "Job"]
    assert len([*commands()]) >= 6


@pytest.mark.parametrize("words", [*commands()], ids=" ".join)
def test_a_command_of_the_page_exists_with_its_options(words: list[str]) -> None:
    assert words[0] == "leyden"
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(command.name, list(rest)) as context:
        assert all(value is not None for value in context.args)


def test_every_container_that_mounts_a_volume_has_it() -> None:
    for manifest in MANIFESTS:
        for pod in pods(manifest):
            there = {volume["name"] for volume in pod["volumes"]}
            mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            assert mounted <= there
