"""The manifests of `docs/cluster.md` parse; commands and metrics in them exist. No cluster is asked: none ran them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml

from leyden.core.cli.main import app
from leyden.core.store.http.worker_presence import WorkerPresence
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.agents.worker_demand import WorkerDemand
from leyden.core.trainer.config import RunConfig

PAGE = Path(__file__).parents[1] / "docs/cluster.md"
TEXT = PAGE.read_text()
MANIFESTS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)]


def commands() -> Iterator[list[str]]:
    """Every `leyden` command of the page, in manifests and consoles."""
    for manifest in MANIFESTS:
        for container in containers(manifest):
            yield from [container["command"]] if "command" in container else []
        if "entrypoint" in manifest.get("spec", {}):
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
    assert [manifest["kind"] for manifest in MANIFESTS] == [
        "RayJob",
        "Job",
        "Deployment",
        "ScaledObject",
        "ConfigMap",
        "HorizontalPodAutoscaler",
    ]
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


def manifest(kind: str) -> dict[str, Any]:
    """The manifest of this kind."""
    (found,) = [each for each in MANIFESTS if each["kind"] == kind]
    return found


async def metrics() -> dict[str, dict[str, str]]:
    """The labels of every metric of a run's workers, by its name."""
    demand = WorkerDemand(RunConfig(name="train", policy="p"), MemoryStore(), WorkerPresence())
    return {sample.name: sample.labels for family in await demand.measure() for sample in family.samples}


async def test_metrics_that_autoscalers_read_exist_with_their_labels() -> None:
    known = await metrics()
    (trigger,) = manifest("ScaledObject")["spec"]["triggers"]
    (external,) = manifest("HorizontalPodAutoscaler")["spec"]["metrics"]
    (rule,) = yaml.safe_load(manifest("ConfigMap")["data"]["config.yaml"])["externalRules"]
    metric = external["external"]["metric"]
    name, labels = re.findall(r"(leyden_\w+)\{(.*?)\}", trigger["metadata"]["query"])[0]
    assert labels == ",".join(f'{label}="{value}"' for label, value in known[name].items())
    assert known[metric["name"]] == metric["selector"]["matchLabels"]
    assert rule["name"]["as"] == rule["seriesQuery"] == metric["name"]
    assert re.findall(r"leyden_\w+", rule["metricsQuery"]) == [metric["name"]]
    assert {row for row in re.findall(r"^\| `(leyden_run_\w+)`", TEXT, re.MULTILINE)} == known.keys()


def test_autoscalers_reach_the_pods_and_count_their_workers() -> None:
    deployment, hpa = manifest("Deployment"), manifest("HorizontalPodAutoscaler")["spec"]
    scaled = manifest("ScaledObject")["spec"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command: list[str] = container["command"]
    workers, drain = (command[command.index(option) + 1] for option in ("--workers", "--drain"))
    assert scaled["triggers"][0]["metadata"]["threshold"] == workers
    assert hpa["metrics"][0]["external"]["target"]["averageValue"] == workers
    for target in (scaled["scaleTargetRef"], hpa["scaleTargetRef"]):
        assert target["name"] == deployment["metadata"]["name"]
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > int(drain)
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
