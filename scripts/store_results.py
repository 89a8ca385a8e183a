"""Does it matter to what is learned where a run's store is? The quickstart and the team example on every kind of store.

Each run is `leyden train` with the same seed and `--deterministic`, so that held-out results and trained weights must
be the same on every store, bit by bit. `shard` is three SQLite files. The exit code is 1 if a run fails or a result
differs.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kills.store_backends import BACKENDS, MISSING
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport

ROOT = Path(__file__).parents[1]
CALCULATOR = ROOT / "examples/calculator_langgraph"
AGENTS = {"quickstart": CALCULATOR, "team": ROOT / "examples/team_langgraph"}
STORES = ("default", "memory", "sqlite", "postgresql", "redis", "http", "shard")
"""`default` is the SQLite file in the run's folder."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run."""

    example: str
    store: str
    before: float | None
    after: float | None
    sampled_before: float | None
    sampled_after: float | None
    rollouts: int
    seconds: float
    weights: str
    """SHA-256 of the trained policy's file."""


@contextmanager
def opened(kind: str, folder: Path) -> Generator[str | None]:
    """Context manager: the URI of an empty store of a kind; None for that in the run's folder."""
    if kind == "default":
        yield None
    elif kind == "memory":
        yield "memory://"
    elif kind == "shard":
        shards = [{"name": name, "uri": f"sqlite:///{name}.db"} for name in "abc"]
        listed = folder / "shards.yaml"
        listed.write_text(json.dumps({"shards": shards}))
        listed.chmod(0o600)
        yield f"shard:///{listed}"
    else:
        with BACKENDS[kind]() as backend:
            yield backend.uri


def train(example: str, kind: str, steps: int, seed: int, held_out: int | None) -> Result:
    """Train once, with so many held-out tasks or all; raises SystemExit if the run fails."""
    agent = AGENTS[example]
    with tempfile.TemporaryDirectory(prefix="leyden-stores-") as made, opened(kind, Path(made)) as uri:
        tasks = (CALCULATOR / "val.jsonl").read_text().splitlines(keepends=True)
        val = Path(made) / "val.jsonl"
        val.write_text("".join(tasks[:held_out]))
        command = [sys.executable, "-m", "leyden.core.cli", "train", f"{agent / 'agent.py'}:agent", "--quiet"]
        command += ["--tasks", str(CALCULATOR / "train.jsonl"), "--val", str(val)]
        command += ["--reward", f"{agent / 'reward.py'}:score", "--policy", str(CALCULATOR / "policy")]
        command += ["--learning-rate", "6e-4", "--steps", str(steps), "--seed", str(seed), "--deterministic"]
        command += ["--runs", made, "--name", "run"] + ([] if uri is None else ["--store", uri])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{example} on {kind} ended with {done.returncode}: {done.stderr[-3000:]}")
        folder = RunFolder(Path(made) / "run")
        report = folder.report()
        assert report is not None
        return _result(example, kind, report, folder.policy / "model.safetensors")


def _result(example: str, kind: str, report: RunReport, weights: Path) -> Result:
    return Result(
        example=example,
        store=kind,
        before=report.success_before,
        after=report.success_after,
        sampled_before=report.sampled_before,
        sampled_after=report.sampled_after,
        rollouts=report.rollouts,
        seconds=report.seconds,
        weights=hashlib.sha256(weights.read_bytes()).hexdigest(),
    )


def different(results: Sequence[Result]) -> list[str]:
    """Runs whose result is another one than that of the same example's first run, each in one line."""
    first: dict[str, Result] = {}
    wrong: list[str] = []
    for one in results:
        other = first.setdefault(one.example, one)
        if msgspec.structs.replace(one, store="", seconds=0.0) != msgspec.structs.replace(other, store="", seconds=0.0):
            wrong.append(f"{one.example}: the run on {one.store} has another result than that on {other.store}")
    return wrong


def show(console: Console, results: Sequence[Result]) -> None:
    """Print a line for each run."""
    table = Table(title="held-out success in percent")
    for column in ("example", "store", "greedy before", "after", "sampled before", "after", "rollouts", "weights", "s"):
        table.add_column(column, justify="left" if column in ("example", "store", "weights") else "right")
    for one in results:
        figures = (one.before, one.after, one.sampled_before, one.sampled_after)
        cells = ["–" if figure is None else f"{100 * figure:.2f}" for figure in figures]
        table.add_row(one.example, one.store, *cells, f"{one.rollouts:,}", one.weights[:12], f"{one.seconds:.0f}")
    console.print(table)


def main() -> None:
    """Train, and show what came of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="*", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--stores", nargs="*", choices=STORES, default=list(STORES))
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--held-out", type=int, metavar="TASKS", help="evaluate only so many of the 400 held-out tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args()
    for kind in options.stores:
        if kind in MISSING and (missing := MISSING[kind]()) is not None:
            raise SystemExit(f"--stores {kind}: {missing}")
    console, results = Console(), list[Result]()
    for example in options.examples:
        for kind in options.stores:
            results.append(train(example, kind, options.steps, options.seed, options.held_out))
            console.print(f"{example} on {kind}: {results[-1].seconds:.0f} s", highlight=False)
            if options.json:
                options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    show(console, results)
    wrong = different(results)
    for line in wrong:
        console.print(line, style="red", markup=False, highlight=False)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
