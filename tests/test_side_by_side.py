"""GRPO beside imitation from the same rollouts: who answers, what each side learns, and a run that is killed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from disturbed_runs import kill, trained_steps, wait_for_step

import leyden.core as agl
from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.route import ANSWERED_BY
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.repeatable import repeatable
from leyden.core.store.open import open_store
from leyden.core.testing.scripted_context import ScriptedContext
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.group import group_by_task

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/calculator_langgraph"
STEPS, RATE = 3, 6e-4
GRPO: dict[str, Any] = {"name": "grpo", "algorithm": "lightning_rl", "config": {"correction": "truncated"}}
BEST: dict[str, Any] = {"name": "best", "algorithm": "sft", "config": {"keep": "best"}}

pytestmark = [pytest.mark.timeout(600)]


def training(runs: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", f"{EXAMPLE}/agent.py:agent", "--tasks", f"{EXAMPLE}/train.jsonl"),
        *("--reward", f"{EXAMPLE}/reward.py:score", "--policy", f"{EXAMPLE}/policy"),
        *("--steps", str(STEPS), "--tasks-per-step", "4", "--group-size", "4", "--learning-rate", str(RATE)),
        *("--deterministic", "--quiet", "--runs", str(runs), "--name", name, *more),
    ]


def side_by_side(*sides: dict[str, Any], acts: str) -> list[str]:
    return ["--algorithm", "side_by_side", "--set", f"sides={json.dumps(sides)}", "--set", f"acts={acts}"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    library: Any = safetensors.torch
    return library.load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


async def recorded(run: Path) -> list[tuple[AttemptedRollout, list[Any]]]:
    """Every rollout with its spans."""
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        found = [one for one in (await store.query_rollouts()).items if isinstance(one, AttemptedRollout)]
        return [(one, (await store.query_spans(one.rollout_id)).items) for one in found]
    finally:
        await store.close()


@pytest.fixture(scope="module")
def runs(leyden: Callable[..., Any], few_held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `grpo`, of that algorithm alone, and `both`, where it acts and imitation learns beside it."""
    runs = tmp_path_factory.mktemp("runs")
    evaluated = ("--val", str(few_held_out), "--eval-every", "2", "--keep-checkpoints", "9")
    done = leyden(*training(runs, "grpo", *evaluated, "--set", "correction=truncated"))
    assert done.returncode == 0, done.stderr
    done = leyden(*training(runs, "both", *evaluated, *side_by_side(BEST, GRPO, acts="grpo")))
    assert done.returncode == 0, done.stderr
    return runs


@pytest.fixture(scope="module")
def turns(leyden: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which both act, undisturbed."""
    runs = tmp_path_factory.mktemp("turns")
    done = leyden(*training(runs, "whole", *side_by_side(GRPO, BEST, acts="turns")))
    assert done.returncode == 0, done.stderr
    return runs / "whole"


def test_the_side_that_acts_learns_bit_for_bit_what_it_learns_alone(runs: Path) -> None:
    alone, both = lines(runs / "grpo"), lines(runs / "both")
    for step in range(1, STEPS + 1):
        name = f"checkpoints/step-{step:08d}"
        grpo, best = (weights(runs / "both" / name / side) for side in ("grpo", "best"))
        assert same(grpo, weights(runs / "grpo" / name))
        assert not same(grpo, best)
    assert len(alone) == len(both)
    for one, other in zip(alone, both, strict=True):
        assert one.get("success") == other.get("success") and one.get("sampled") == other.get("sampled")
        assert one.get("reward") == other.get("reward") and one.get("loss") == other.get("grpo/loss")


async def test_the_side_that_does_not_act_learns_what_it_would_alone_from_the_rollouts_that_were_recorded(
    runs: Path,
) -> None:
    tried = [(one, spans) for one, spans in await recorded(runs / "both") if one.mode == "train"]
    batches: list[Any] = []
    for step in range(STEPS):
        own = sorted((n for n in tried if n[0].rollout_id.startswith(f"train-v{step}-")), key=lambda n: _place(n[0]))
        last = {one.rollout_id.split("-")[2] for one, _ in own}
        assert len(last) == 1, "no batch was without a lesson for the side that acts"
        trajectories = [assemble(one, one.attempt, spans, agl.Selector()) for one, spans in own]
        batches.append(group_by_task(trajectories, {one.rollout_id: str(one.metadata["task"]) for one, _ in own}))
    model = PolicyModel.load(str(EXAMPLE / "policy"))
    context = ScriptedContext(model, batches, steps=STEPS)
    with repeatable(True):
        await agl.SFT(agl.SFTConfig(keep="best", learning_rate=RATE)).run(context)
    assert same(
        {name: tensor.contiguous() for name, tensor in model.trained_weights().items()},
        weights(runs / "both" / f"checkpoints/step-{STEPS:08d}" / "best"),
    )


def _place(rollout: AttemptedRollout) -> list[int]:
    return [int(part.lstrip("vb")) for part in rollout.rollout_id.split("-")[1:]]


def test_both_are_measured_and_shown_side_by_side(runs: Path, leyden: Callable[..., Any]) -> None:
    report = json.loads((runs / "both/report.json").read_text())
    sides = {side: own["few"] for side, own in report["sides"].items()}
    assert sides["grpo"]["after"] == report["success_after"]
    assert sides["best"]["before"] == sides["grpo"]["before"] == report["success_before"]
    assert sides["best"]["after"] is not None
    done = leyden("models", "compare", "both:last:grpo", "both:last:best", "--runs", str(runs), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["a"], found["b"]) == (f"both:{STEPS}:grpo", f"both:{STEPS}:best")
    assert [found["held_out"]["few"][which] for which in "ab"] == [sides["grpo"]["after"], sides["best"]["after"]]
    done = leyden("models", "list", "both", "--runs", str(runs))
    assert "few of best" in done.stdout, done.stderr
    done = leyden("show", "both", "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    assert "success on few, best" in done.stdout
    for side in ("grpo", "best"):
        assert (runs / "both/policy" / side / "config.json").exists()


async def test_in_turns_every_rollout_is_answered_by_the_policy_whose_turn_it_is(turns: Path) -> None:
    found = await recorded(turns)
    answered = {one.rollout_id: one.metadata[ANSWERED_BY] for one, _ in found}
    for one, spans in found:
        spoke = {span.attributes[semconv.POLICY] for span in spans if semconv.POLICY in span.attributes}
        assert spoke == {one.metadata[ANSWERED_BY]}
    groups: dict[str, list[str]] = {}
    for rollout_id, side in answered.items():
        groups.setdefault(rollout_id.rpartition("-")[0], []).append(side)
    assert all(sorted(sides) == ["best", "best", "grpo", "grpo"] for sides in groups.values())
    for line in lines(turns):
        assert line["grpo/transitions"] + line["best/transitions"] == line["transitions"]
        assert line["grpo/mismatch_ratio_effective_share"] > 0
    assert lines(turns)[-1]["grpo/importance_ratio_deviation"] > 1e-3, "half of its tokens are another's"


@pytest.mark.campaign
def test_a_killed_run_goes_on_with_both_and_ends_bit_for_bit_as_the_whole_one(
    turns: Path, leyden: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    process = start(*training(tmp_path, "killed", *side_by_side(GRPO, BEST, acts="turns")))
    wait_for_step(killed, 2, process)
    kill(process)
    assert len(trained_steps(killed)) < STEPS or not (killed / "report.json").exists()
    done = leyden("train", "--resume", "killed", "--runs", str(tmp_path), "--quiet")
    assert done.returncode == 0, done.stderr
    assert trained_steps(killed) == list(range(1, STEPS + 1))
    for side in ("grpo", "best"):
        assert same(weights(killed / "policy" / side), weights(turns / "policy" / side))


def test_sides_from_python_and_with_adapters(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (EXAMPLE / "train.jsonl").read_text().splitlines()[:20]]
    adapted = agl.Side(name="adapted", algorithm="lightning_rl", config={"lora": {"rank": 4}, "learning_rate": 5e-3})
    plain = agl.Side(name="plain", algorithm="lightning_rl", config={"learning_rate": RATE})
    algorithm = agl.SideBySide(agl.SideBySideConfig(sides=[plain, adapted]))
    trainer = agl.Trainer(
        algorithm=algorithm, policy=EXAMPLE / "policy", name="made", runs=tmp_path, steps=1, quiet=True, check=False
    )
    report = trainer.fit(f"{EXAMPLE}/agent.py:agent", rows, reward=f"{EXAMPLE}/reward.py:score")
    assert report.steps == 1
    assert report.policies["plain"].transitions == report.policies["adapted"].transitions > 0
    assert sorted(path.name for path in (tmp_path / "made/policy").iterdir()) == ["adapted", "adapted-adapter", "plain"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (side_by_side(GRPO, acts="grpo"), "sides needs at least two entries"),
        (side_by_side(GRPO, BEST, acts="nobody"), "acts must be turns, or the name of a side (grpo, best)"),
        ([*side_by_side(GRPO, BEST, acts="grpo"), "--route", "to=best"], "a route goes to 'best'"),
        (
            [*side_by_side(GRPO, BEST, acts="grpo"), "--policy", "a=p", "--policy", "b=q", "--route", "to=a"],
            "no route reaches policy 'b'",
        ),
        (
            [*side_by_side(GRPO, BEST, acts="grpo"), "--policy", "a=p", "--route", "to=a"],
            "side_by_side trains the policies grpo and best, which start from the same weights: give --policy FOLDER "
            "once",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = training(tmp_path, "bad")
    if "--policy" in arguments:
        at = given.index("--policy")
        del given[at : at + 2]
    assert run([*given, *arguments]) == 2
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("leyden: ")]
    assert says in line
    assert not (tmp_path / "bad").exists()
