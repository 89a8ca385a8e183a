"""Run with sides: which side answers, which is measured, which version is kept, and what is displayed."""

import math
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from leyden.core.cli.main import run
from leyden.core.data.rollout import Task
from leyden.core.data.route import ANSWERED_BY, parse_routes
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import RunError, UsageError
from leyden.core.testing.factories import trajectory
from leyden.core.trainer.config import EvaluationSet, RunConfig, load_config, save_config
from leyden.core.trainer.context.run_context import RunContext
from leyden.core.trainer.context.run_journal import RunJournal, held_out_curve
from leyden.core.trainer.launch import check_run, with_sides
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Trackers
from leyden.core.trainer.preflight.report import CheckReport, ok
from leyden.core.trainer.rollouts.collector import Collected, Collector
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.model_selection import ModelSelection, VersionScores
from leyden.core.trainer.run_folder.models import Models, compare_versions, find_version
from leyden.core.trainer.run_folder.report import closing_table
from leyden.core.trainer.run_folder.timing import TimeUsage
from leyden.core.trainer.run_folder.versions import Evaluation

SIDES: list[dict[str, Any]] = [
    {"name": "grpo", "algorithm": "lightning_rl"},
    {"name": "best", "algorithm": "sft", "config": {"keep": "best"}},
]
CONFIG = RunConfig(
    name="r",
    agent="a",
    policy="p",
    algorithm="side_by_side",
    algorithm_config={"sides": SIDES},
    held_out=(EvaluationSet(name="val", source="v"),),
    tasks_per_step=3,
    group_size=4,
)
TURNS = replace(CONFIG, algorithm_config={"sides": SIDES, "acts": "turns"})


def test_a_run_has_a_policy_for_each_side_of_its_algorithm(tmp_path: Path) -> None:
    config = with_sides(CONFIG)
    assert config.policies == {"grpo": "p", "best": "p"}
    assert (config.acting, config.answering, config.usual, config.has_names) == (("grpo",), ("grpo",), "grpo", True)
    assert config.off_policy == ("best",)
    assert (with_sides(TURNS).acting, with_sides(TURNS).off_policy) == (("grpo", "best"), ("grpo", "best"))
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    plain = replace(CONFIG, algorithm="lightning_rl", algorithm_config={})
    assert with_sides(plain) is plain
    assert (plain.answering, plain.off_policy) == (("policy",), ())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"policy": {"a": "p", "b": "q"}, "routes": parse_routes(["node=x,to=a", "to=b"])},
            "give --policy FOLDER once",
        ),
        ({"routes": parse_routes(["to=best"])}, "a route goes to 'best', which is none of policy, provider"),
        ({"frozen": {"best": "f"}}, "policy 'best' is both trained and frozen"),
        ({"algorithm_config": {"sides": [{**SIDES[0], "name": "a/b"}, SIDES[1]]}}, "policy name 'a/b' must match"),
    ],
)
def test_policies_for_separate_agents_and_sides_are_not_had_at_once(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        with_sides(replace(CONFIG, **changes))


def test_agents_may_be_sent_elsewhere_beside_sides() -> None:
    config = with_sides(
        replace(CONFIG, frozen={"judge": "f"}, routes=parse_routes(["agent=judge,to=judge", "to=policy"]))
    )
    assert config.usual == "grpo"


def test_a_check_has_the_sides_too(tmp_path: Path) -> None:
    looked: list[RunConfig] = []

    def run_check(_: RunFolder, config: RunConfig) -> CheckReport:
        looked.append(config)
        return CheckReport(results=(ok("rollouts", "4 of 4 succeeded"),))

    check_run(tmp_path, replace(CONFIG, held_out=()), [{"question": "?"}], run_check)
    assert list(tmp_path.iterdir()) == [], "nothing is kept of a check that is passed"
    assert looked[0].sides == ("grpo", "best")


class RequestStore:
    """A store that records the rollouts that it is to queue, and then raises."""

    class Enough(Exception):
        """Rollouts were put into the queue."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def enqueue_many_rollouts(self, requests: list[Any]) -> None:
        self.requests = requests
        raise self.Enough


async def requests_of(config: RunConfig, verb: str, *what: Any, **how: Any) -> list[Any]:
    store, rows = RequestStore(), cast("list[Task]", [{"question": str(n)} for n in range(3)])
    unused: Any = None
    collector = Collector(
        cast(Any, store),
        config,
        tasks=rows,
        held_out={"val": rows},
        display=Display(),
        check_workers=unused,
        flush=unused,
    )
    with pytest.raises(RequestStore.Enough):
        await getattr(collector, verb)(*what, **how)
    return store.requests


def answered(requests: list[Any]) -> list[Any]:
    return [request.metadata.get(ANSWERED_BY) for request in requests]


async def test_the_side_that_acts_answers_every_rollout() -> None:
    requests = await requests_of(with_sides(CONFIG), "train", 0, version=0)
    assert answered(requests) == ["grpo"] * 12


async def test_a_run_without_sides_says_nothing_of_who_answers() -> None:
    plain = replace(CONFIG, algorithm="lightning_rl", algorithm_config={})
    requests = await requests_of(plain, "train", 0, version=0)
    assert answered(requests) == [None] * 12


@pytest.mark.parametrize(("size", "shares"), [(4, {2}), (5, {2, 3}), (2, {1}), (3, {1, 2})])
async def test_in_turns_every_group_has_as_many_rollouts_of_each_as_it_divides_into(
    size: int, shares: set[int]
) -> None:
    config = replace(with_sides(TURNS), group_size=size, tasks_per_step=2)
    whole: Counter[str] = Counter()
    for index in range(3):
        requests = await requests_of(config, "train", index, version=7)
        for place in range(2):
            own = Counter(answered(requests[place * size : (place + 1) * size]))
            assert set(own) == {"grpo", "best"} and set(own.values()) <= shares
            whole += own
        ids = {request.rollout_id for request in requests}
        assert ids == {f"train-v7-b{index}-{place}-{copy}" for place in range(2) for copy in range(size)}
    assert whole["grpo"] == whole["best"], "what is left over in a group goes to each as often"


async def test_groups_that_are_collected_as_they_finish_take_turns_likewise() -> None:
    config = replace(with_sides(TURNS), group_size=3)
    groups = [await requests_of(config, "group", n, print) for n in range(2)]
    assert list(map(answered, groups)) == [["grpo", "best", "grpo"], ["best", "grpo", "best"]]


async def test_a_side_that_does_not_act_is_measured_by_rollouts_of_its_own() -> None:
    found: dict[str | None, list[Any]] = {}
    for side in ("grpo", "best", None):
        found[side] = await requests_of(
            with_sides(CONFIG), "evaluate", "val", "after", sampled=True, version=4, side=side
        )
    assert answered(found["grpo"]) == ["grpo"] * 3 and answered(found["best"]) == ["best"] * 3
    plain, grpo, best = ([request.rollout_id for request in found[side]] for side in (None, "grpo", "best"))
    assert plain == grpo == [f"val-val-after-v4-policy-{row}" for row in range(3)], "as of a run of it alone"
    assert best == [f"{rollout_id}-best" for rollout_id in plain]


def earned(success: float | None) -> Evaluation:
    rewards = {} if success is None else {str(row): float(row < 10 * success) for row in range(10)}
    return Evaluation(success=success, rewards=rewards)


def scored(version: int, acting: tuple[str, ...], **sides: float | None) -> VersionScores:
    scores = VersionScores.none(version, tuple(sides))
    scores.note("val", {side: earned(success) for side, success in sides.items()}, sampled=False, acting=acting)
    return scores


def test_the_side_that_acts_is_what_versions_are_compared_by() -> None:
    scores = scored(1, ("grpo",), grpo=0.2, best=0.9)
    assert (scores.side, scores.held_out["val"].success) == ("grpo", 0.2)
    assert scores.sides["best"].held_out["val"].success == 0.9


def test_in_turns_it_is_the_best_by_the_first_set_for_all_sets() -> None:
    scores = scored(1, ("grpo", "best"), grpo=0.2, best=0.9)
    scores.note("val", {"grpo": earned(1.0), "best": earned(0.1)}, sampled=True, acting=("grpo", "best"))
    assert (scores.side, scores.held_out["val"].success, scores.sampled["val"].success) == ("best", 0.9, 0.1)
    assert scored(1, ("grpo", "best"), grpo=0.5, best=0.5).side == "grpo", "of equals, the first"
    assert scored(1, ("grpo", "best"), grpo=None, best=0.0).side == "best"


def evaluated(runs: Path) -> tuple[RunFolder, RunConfig, ModelSelection]:
    """A run in turns, whose versions 0 and 1 were evaluated."""
    config = replace(with_sides(TURNS), eval_every=1)
    folder = RunFolder(runs / "r")
    folder.checkpoints.mkdir(parents=True)
    save_config(config, folder.config_file)
    folder.tasks_file("val").write_bytes(b"".join(b'{"question": "%d"}\n' % row for row in range(10)))
    selection = ModelSelection(folder, config)
    selection.begin()
    selection.score(scored(0, config.acting, grpo=0.3, best=0.3))
    numbers = {"reward": 0.5, "grpo/reward": 0.4, "best/reward": 0.6, "grpo/loss": 1.0, "best/loss": 2.0}
    selection.note({"step": 1, **numbers})
    selection.score(scored(1, config.acting, grpo=0.4, best=0.8))
    selection.record(1)
    return folder, config, selection


def test_a_record_holds_every_side_and_the_best_is_kept(tmp_path: Path) -> None:
    folder, config, selection = evaluated(tmp_path)
    kept = selection.kept(1)
    assert (kept.version, kept.success) == (1, 0.8)
    assert kept.why == "the best of 2 evaluations on val, with 80.0 % (best)"
    record = Models(folder, config).versions[1]
    assert (record.side, record.held_out["val"].success) == ("best", 0.8)
    assert {side: own.held_out["val"].success for side, own in record.sides.items()} == {"grpo": 0.4, "best": 0.8}
    again = ModelSelection(folder, config)
    checkpoint = folder.checkpoints / "step-00000001"
    checkpoint.mkdir()
    again.restore(1, checkpoint, selection.progress(1))
    assert again.scores is not None and again.scores.sides.keys() == {"grpo", "best"}


def test_sides_are_compared_with_each_other_and_each_with_itself(tmp_path: Path) -> None:
    evaluated(tmp_path)
    grpo, best = find_version(tmp_path, "r:1:grpo"), find_version(tmp_path, "r:best")
    found = compare_versions(grpo, best)
    assert (found.a, found.b) == ("r:1:grpo", "r:1:best")
    assert (found.metrics["loss"], found.metrics["reward"]) == ((1.0, 2.0), (0.4, 0.6))
    assert not any("/" in name for name in found.metrics)
    assert (found.held_out["val"].wins, found.held_out["val"].losses) == (4, 0)
    whole = compare_versions(find_version(tmp_path, "r:0"), find_version(tmp_path, "r"))
    assert (whole.a, whole.b) == ("r:0:grpo", "r:1:best")
    assert {name: paired.b for name, paired in whole.held_out.items()} == {
        "val": 0.8,
        "val, grpo": 0.4,
        "val, best": 0.8,
    }
    with pytest.raises(RunError, match="version 1 of run 'r' has no side 'spam'; it has grpo, best"):
        find_version(tmp_path, "r:spam")
    with pytest.raises(RunError, match="nobody"):
        find_version(tmp_path, "nobody:1:grpo")


def test_versions_are_listed_with_every_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(tmp_path)
    assert run(["models", "list", "--runs", str(tmp_path), "--json"]) == 0
    assert '"success":{"val":0.8},"sides":{"grpo":{"val":0.4},"best":{"val":0.8}}' in capsys.readouterr().out
    assert run(["models", "list", "r", "--runs", str(tmp_path)]) == 0
    assert "val of grpo" in capsys.readouterr().out


async def test_a_run_that_evaluates_nothing_has_versions_with_sides(tmp_path: Path) -> None:
    config, unused = replace(with_sides(CONFIG), held_out=()), cast(Any, None)
    folder = RunFolder(tmp_path / "r")
    folder.path.mkdir()
    save_config(config, folder.config_file)
    journal = RunJournal(folder, config, Display(), Trackers([]), TimeUsage.now())
    context = RunContext(config, journal, unused, unused)
    await context.evaluate("before")
    selection = ModelSelection(folder, config)
    selection.begin()
    selection.record(1)
    assert journal.report.sides == {"grpo": {}, "best": {}}
    assert find_version(tmp_path, "r:best")[1].label == "r:1:best"


class Measuring:
    """A collector whose sides earn what the script says on eight tasks; nan: no reward at all."""

    def __init__(self, script: dict[tuple[str | None, bool], float]) -> None:
        self.script = script
        self.evaluated: list[tuple[str | None, bool]] = []

    async def evaluate(
        self, name: str, label: str, *, sampled: bool, version: int, side: str | None, **more: Any
    ) -> Collected:
        assert more == {"resources_id": None}
        self.evaluated.append((side, sampled))
        share = self.script[side, sampled]
        rewards = [None if math.isnan(share) else float(row < 8 * share) for row in range(8)]
        tried = [(str(row), trajectory(reward, [])) for row, reward in enumerate(rewards)]
        return Collected(groups=[TrajectoryGroup(task_id=row, trajectories=(one,)) for row, one in tried])


class LineDisplay(Display):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, text: str) -> None:
        self.lines.append(text)


async def test_every_side_is_measured_and_before_the_first_step_one_for_all(tmp_path: Path) -> None:
    unused: Any = cast(Any, None)
    collector = Measuring(
        {("grpo", False): 0.25, ("best", False): 0.5, ("grpo", True): 0.125, ("best", True): math.nan}
    )
    folder, display = RunFolder(tmp_path), LineDisplay()
    journal = RunJournal(folder, with_sides(CONFIG), display, Trackers([]), TimeUsage.now())
    context = RunContext(with_sides(CONFIG), journal, unused, cast(Any, collector))
    await context.evaluate("before")
    assert collector.evaluated == [("grpo", False), ("grpo", True)]
    context.step = 3
    await context.evaluate("after")
    assert collector.evaluated[2:] == [("grpo", False), ("best", False), ("grpo", True), ("best", True)]
    assert display.lines[0] == "held out, before: grpo 25.0 %, best 25.0 % on val"
    assert display.lines[-1] == "held out, after: grpo 12.5 %, best – on val (sampled, temperature 1)"
    lines = folder.metrics()
    assert lines[2] == {"step": 3, "held_out": "val", "success": 0.25, "sides": {"grpo": 0.25, "best": 0.5}}
    assert held_out_curve(lines) == [(0, 0.25), (3, 0.25)]
    report = journal.report
    assert (report.success_before, report.success_after, report.sampled_after) == (0.25, 0.25, 0.125)
    assert (report.sides["best"]["val"].before, report.sides["best"]["val"].after) == (0.25, 0.5)
    assert report.sides["best"]["val"].sampled_after is None
    rows = [str(cell) for cell in closing_table(report).columns[0].cells]
    assert rows[:4] == [
        "success on val, grpo (8 tasks)",
        "   sampled, temperature 1",
        "success on val, best (8 tasks)",
        "   sampled, temperature 1",
    ]
