"""Takes the figures of prompts that are trained: unmodified agents, three algorithms, several seeds, equal rollouts.

The agents are in `prompt_training`; the first word of a file's name is the agent's task. `best_of_n` is the baseline:
as many prompts as the rollouts allow, written without feedback. What answers an agent, and what writes its new texts,
is a local model with a script (`scripted`), or the policy `--policy` (`policy`), which `leyden gateway` serves. Runs
that are already in the folder are used, not made again. All figures are also written into `figures.json`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.request import Request, urlopen

import msgspec
from rich.console import Console
from rich.progress import track

from leyden.core.data.production import CaptureBegin, CaptureBegun
from leyden.core.testing.servers.chat_endpoint import chat_endpoint

ROOT = Path(__file__).parents[1]
AGENTS = Path("scripts/prompt_training")
SUMS = Path("examples/sums_lcel")
ALGORITHMS = ("gepa", "apo", "best_of_n")
KEY = "local-key"
"""Key of the endpoints on this machine."""

sys.path.insert(0, str(ROOT / AGENTS))

import local_model  # noqa: E402
import measures  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Setup:
    """An agent with its components, what answers it, and what writes new texts."""

    agent: str
    components: tuple[str, ...]
    answers: str = "scripted"
    reflects: str = "scripted"
    rollouts: int = 240
    tasks: int = 24
    held_out: int = 40


SETUPS = {
    "langgraph": Setup(agent="measures_langgraph", components=("measures.reply.system",)),
    "openai_agents": Setup(agent="measures_openai_agents", components=("measures.system",)),
    "autogen": Setup(agent="measures_autogen", components=("converter.system", "editor.system")),
    "crewai": Setup(agent="measures_crewai", components=("converter.system", "editor.system")),
    "openai": Setup(agent="measures_openai", components=("system",)),
    "openai_reflected": Setup(agent="measures_openai", components=("system",), reflects="policy", rollouts=120),
    "sums": Setup(
        agent="sums_openai",
        components=("system",),
        answers="policy",
        reflects="policy",
        rollouts=40,
        tasks=10,
        held_out=16,
    ),
}
SETTINGS = {
    "gepa": {"steps": "200"},
    "apo": {"steps": "50", "beam_width": "2", "branch_factor": "2", "minibatch": "4", "validation_batch": "6"},
    "best_of_n": {"steps": "1"},
}
"""Settings of the algorithms: steps that no budget reaches, and of APO rounds that a small budget can have."""


@contextmanager
def endpoints(options: argparse.Namespace, kinds: set[str]) -> Generator[dict[str, str]]:
    """Yield the base URLs of what answers agents and writes texts."""
    urls: dict[str, str] = {}
    with ExitStack() as closing:
        if "scripted" in kinds:
            urls["scripted"] = closing.enter_context(chat_endpoint(local_model.answer)).url
        if "policy" in kinds:
            urls["policy"] = closing.enter_context(gateway(options))
        yield urls


@contextmanager
def gateway(options: argparse.Namespace) -> Generator[str]:
    """Serve a policy with `leyden gateway`, and yield its base URL; all calls belong to one captured rollout.

    The gateway answers only calls with the token of such a rollout, which becomes the key of all endpoints.
    """
    command = [
        sys.executable,
        "-m",
        "leyden.core.cli",
        "gateway",
        "--policy",
        str(options.policy),
        "--store",
        "memory://",
    ]
    variables = os.environ | {"LEYDEN_CAPTURE_TOKEN": KEY}
    with subprocess.Popen(
        [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True, env=variables
    ) as served:
        assert served.stdout is not None
        root = json.loads(served.stdout.readline())["url"]
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/msgpack"}
        begin = Request(f"{root}/capture/begin", msgspec.msgpack.encode(CaptureBegin()), headers)
        with urlopen(begin) as answer:
            begun = msgspec.msgpack.decode(answer.read(), type=CaptureBegun)
        try:
            options.key = begun.token
            yield f"{root}/v1"
        finally:
            served.terminate()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write tasks into a file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tasks_of(setup: Setup, *, held_out: bool) -> list[dict[str, Any]]:
    """Return an agent's tasks for training, or the held-out ones."""
    count = setup.held_out if held_out else setup.tasks
    if kind_of(setup) == "measures":
        return measures.tasks(count, held_out=held_out)
    lines = (ROOT / SUMS / ("val.jsonl" if held_out else "train.jsonl")).read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def kind_of(setup: Setup) -> str:
    """Return the first word of an agent's name."""
    return setup.agent.split("_")[0]


def leyden(options: argparse.Namespace, name: str, *words: str, seed: int = 0) -> None:
    """Run a command of Leyden; what it prints is in a file of the folder."""
    command = [sys.executable, "-m", "leyden.core.cli", *words]
    variables = os.environ | {"OPENAI_API_KEY": options.key, "REFLECTION_SEED": str(seed), "OMP_NUM_THREADS": "1"}
    with (options.folder / f"{name}.log").open("w") as log:
        subprocess.run(command, cwd=ROOT, check=True, env=variables, stdout=log, stderr=log)


def run(options: argparse.Namespace, name: str, algorithm: str, seed: int, urls: dict[str, str]) -> Path:
    """Return the folder of a run; it is made if it is not there."""
    setup, run_name = SETUPS[name], f"{name}-{algorithm}-seed{seed}"
    folder = options.folder / "runs" / run_name
    if (folder / "report.json").exists():
        return folder
    tasks = write_rows(options.folder / name / "train.jsonl", tasks_of(setup, held_out=False))
    held_out = write_rows(options.folder / name / "val.jsonl", tasks_of(setup, held_out=True))
    agent = [f"{AGENTS}/{setup.agent}.py:agent", "--tasks", tasks, "--endpoint", urls[setup.answers]]
    prompts = options.folder / name / "prompts.yaml"
    if not prompts.exists():
        leyden(options, f"{name}-prompts", "prompts", *agent, "--out", str(prompts))
    settings = SETTINGS[algorithm] | {
        "budget.rollouts": str(setup.rollouts),
        "components": json.dumps(setup.components),
    }
    if setup.reflects == "scripted":
        settings["reflection.function"] = f"{AGENTS}/reflection.py:propose"
    else:
        settings |= {"reflection.endpoint": urls[setup.reflects], "reflection.max_tokens": "100"}
        settings |= {"reflection.temperature": "0.4", "reflection.model": "policy"}
    steps = settings.pop("steps")
    words = ["train", *agent, "--val", held_out, "--reward", f"{AGENTS}/reward.py:{kind_of(setup)}"]
    words += ["--algorithm", f"{AGENTS}/best_of_n.py:BestOfN" if algorithm == "best_of_n" else algorithm]
    words += ["--prompts", str(prompts), "--steps", steps, "--seed", str(seed), "--concurrency", "8"]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    leyden(options, run_name, *words, "--runs", str(folder.parent), "--name", run_name, "--quiet", seed=seed)
    return folder


def figures(folder: Path) -> dict[str, Any]:
    """Return the figures of a run: its held-out score before and after, and what the search spent."""
    report = json.loads((folder / "report.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    spent = [line for line in lines if "spent_rollouts" in line][-1]
    held_out = report["held_out"]["val"]
    return {
        "before": held_out["before"],
        "after": held_out["after"],
        "validation": spent.get("reward"),
        "rollouts": spent["spent_rollouts"],
        "candidates": max(int(line.get("candidates") or 0) for line in lines),
        "seconds": report["seconds"],
    }


def main() -> None:
    """Make what is missing, print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where tasks and runs are kept")
    parser.add_argument("--agents", nargs="+", choices=list(SETUPS), help="default: all that need no --policy")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--policy", type=Path, help="Hugging Face folder of the agents and models called `policy`")
    options = parser.parse_args()
    options.folder, options.key = options.folder.resolve(), KEY
    options.folder.mkdir(parents=True, exist_ok=True)
    kinds = {name: {setup.answers, setup.reflects} for name, setup in SETUPS.items()}
    names = options.agents or [name for name in SETUPS if options.policy or "policy" not in kinds[name]]
    if options.policy is None and any("policy" in kinds[name] for name in names):
        parser.error("these agents need --policy")
    wanted = [(name, algorithm, seed) for name in names for algorithm in options.algorithms for seed in options.seeds]
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    with endpoints(options, {kind for name in names for kind in kinds[name]}) as urls:
        for key in track(wanted, description="runs", console=Console(stderr=True)):
            found[key] = figures(run(options, *key, urls))
    rows = [{"agent": key[0], "algorithm": key[1], "seed": key[2], **one} for key, one in found.items()]
    (options.folder / "figures.json").write_text(json.dumps(rows, indent=1) + "\n")
    print("| agent | before | " + " | ".join(options.algorithms) + " |")
    print("|---" * (2 + len(options.algorithms)) + "|")
    for name in names:
        cells = [name, f"{fmean(one['before'] for key, one in found.items() if key[0] == name):.3f}"]
        for algorithm in options.algorithms:
            after = [one["after"] for key, one in found.items() if key[:2] == (name, algorithm)]
            cells.append(f"**{fmean(after):.3f}** ({', '.join(f'{one:.3f}' for one in after)})")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
