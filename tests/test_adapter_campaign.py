"""A small campaign in every framework, in which everything must hold; and that what does not hold is found."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from adapter_campaign import FRAMEWORKS
from leyden.core.data import semconv
from leyden.core.data.span import Span
from trios.checks import all_wrong
from trios.model import CALLS, CRITIC, PLANNER
from trios.stage import Evidence, run

ROOT = Path(__file__).parents[1]
ROLLOUTS = 4

Change = Callable[[Evidence], Evidence]


def test_there_is_a_system_for_every_adapter() -> None:
    adapters = [path.name.removesuffix("-adapter") for path in (ROOT / "packages").glob("*-adapter")]
    assert len(FRAMEWORKS) == len(adapters) == 4


@pytest.mark.long
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_everything_holds_in_a_small_campaign(framework: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    options = ["--frameworks", framework, "--rollouts", str(ROLLOUTS), "--json", str(path)]
    # A process of its own: some frameworks leave threads and settings behind in theirs.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "scripts/adapter_campaign.py", *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = json.loads(path.read_text())[framework]
    assert found["calls"] == ROLLOUTS * sum(CALLS.values())
    assert found["wrong"] and not any(found["wrong"].values())


# --- What does not hold is found


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return asyncio.run(run("langgraph", ROLLOUTS))


def call_of(agent: str) -> Callable[[Span], bool]:
    return lambda span: semconv.CALL_ID in span.attributes and span.attributes[semconv.AGENT_NAME] == agent


def edited(evidence: Evidence, edit: Callable[[Span], Sequence[Span]], agent: str = PLANNER) -> Evidence:
    """The evidence with what `edit` makes of the first call of an agent in the first rollout."""
    chosen = next(span for span in evidence.spans[0] if call_of(agent)(span))
    spans = [new for old in evidence.spans[0] for new in (edit(old) if old is chosen else [old])]
    return replace(evidence, spans={**evidence.spans, 0: spans})


def called(**changes: str) -> Callable[[Span], list[Span]]:
    """An edit that changes attributes, named as in `semconv`."""
    changed = {getattr(semconv, name): value for name, value in changes.items()}
    return lambda span: [msgspec.structs.replace(span, attributes={**span.attributes, **changed})]


def dropped(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda _: [])


def doubled(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda span: [span, msgspec.structs.replace(span, span_id="0" * 16)])


def of_another_agent(evidence: Evidence) -> Evidence:
    return edited(evidence, called(AGENT_NAME=CRITIC))


def selected_though_the_critics(evidence: Evidence) -> Evidence:
    return edited(evidence, called(AGENT_NAME=PLANNER), CRITIC)


def of_another_node(evidence: Evidence) -> Evidence:
    return edited(evidence, called(NODE="elsewhere"))


def without_a_parent(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda span: [msgspec.structs.replace(span, parent_id="0" * 16)])


def below_another_agent(evidence: Evidence) -> Evidence:
    critic = next(span for span in evidence.spans[0] if call_of(CRITIC)(span))
    return edited(evidence, lambda span: [msgspec.structs.replace(span, parent_id=critic.parent_id)])


def of_another_rollout(evidence: Evidence) -> Evidence:
    call = next(span for span in evidence.spans[0] if call_of(PLANNER)(span))
    there = evidence.rollouts[1]
    moved = msgspec.structs.replace(call, rollout_id=there.rollout_id, attempt_id=there.attempt.attempt_id)
    return replace(dropped(evidence), spans={**dropped(evidence).spans, 1: [*evidence.spans[1], moved]})


def of_another_attempt(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda span: [msgspec.structs.replace(span, attempt_id="another")])


def never_made(evidence: Evidence) -> Evidence:
    return replace(evidence, log=evidence.log[1:])


def failed(evidence: Evidence) -> Evidence:
    return replace(evidence, results={**evidence.results, 0: "ValueError: no"})


def mixed_up(evidence: Evidence) -> Evidence:
    return replace(evidence, results={**evidence.results, 0: evidence.results[0] + evidence.results[1]})


def reached_out(evidence: Evidence) -> Evidence:
    return replace(evidence, looked_up=["example.org"])


@pytest.mark.parametrize(
    ("change", "found_by"),
    [
        (dropped, {"every call recorded once", "selection"}),
        (doubled, {"every call recorded once", "selection"}),
        (of_another_agent, {"agent", "selection"}),
        (selected_though_the_critics, {"agent", "selection"}),
        (of_another_node, {"node"}),
        (without_a_parent, {"parent"}),
        (below_another_agent, {"parent"}),
        (of_another_rollout, {"attempt", "selection"}),
        (of_another_attempt, {"attempt"}),
        (never_made, {"every call recorded once"}),
        (failed, {"what agents returned"}),
        (mixed_up, {"what agents returned"}),
        (reached_out, {"only this machine"}),
    ],
)
def test_what_is_wrong_is_found(evidence: Evidence, change: Change, found_by: set[str]) -> None:
    assert not any(all_wrong(evidence).values())
    wrong = all_wrong(change(evidence))
    assert found_by <= {name for name, lines in wrong.items() if lines}, wrong
