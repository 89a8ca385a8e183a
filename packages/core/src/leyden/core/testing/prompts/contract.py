"""`PromptAlgorithmContract`: what every algorithm that trains prompts promises, as a test class to subclass.

The tests run `leyden train` in a folder of their own, with an agent whose reward depends on its prompt, against an
endpoint of this process.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.algorithm.prompts.search import PromptSearch
from leyden.core.algorithm.registry import algorithm_class
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store
from leyden.core.testing.prompts.hints import hinted_tasks, judged
from leyden.core.testing.prompts.reflection import add_demanded
from leyden.core.testing.servers.chat_endpoint import chat_endpoint

KILLS = 6
"""Number of points at which the run is killed."""
TASKS = 6
SECONDS = 120
MANY_STEPS = 50
"""Number of steps that no budget of these tests allows."""
REFLECTION = "reflection"
"""Name of the reflection model at the endpoint."""
_OF_THE_SEARCH = re.compile(r"(train|val-\w+)-s\d+-r\d+-")
"""Id of a rollout that the algorithm requested; other rollouts are evaluations of the run."""
AGENT = """
import json
from urllib.request import Request, urlopen

import leyden.core as agl


@agl.rollout
def agent(task, llm, prompt_template):
    prompt = prompt_template.format(question=task["question"])
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    request = Request(f"{llm.get_base_url()}/chat/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urlopen(request) as response:
        answer = json.load(response)
    score, _, feedback = answer["choices"][0]["message"]["content"].partition("\\n")
    return (float(score), feedback) if feedback else float(score)
"""


class PromptAlgorithmContract:
    """Subclass it, and set the algorithm and its settings. The prompt is called `prompt` and begins as `START`.

    The tasks are those of `testing.prompts.hints`. The reflection model answers as `testing.prompts.reflection` does.
    """

    START = "{question}"
    algorithm: str
    """Name or import string of the algorithm."""
    settings: tuple[str, ...] = ()
    """Its options, each as `key=value`, without those of the reflection model."""
    reflects = True
    """Whether it calls a reflection model."""
    budget: int | None = 23
    """Budget in rollouts of the test of budgets; None for an algorithm without budgets."""
    steps = 3

    def test_a_run_killed_at_six_points_repeats_nothing(self, tmp_path: Path) -> None:
        """Finished rollouts keep their attempts, and no recorded reflection is requested again.

        The result is that of a run without kills.
        """
        with run_folder(tmp_path / "whole") as whole, _counting_endpoint() as endpoint:
            assert self._run(whole, endpoint).returncode == 0
            calls, reflections = endpoint.calls, endpoint.reflections
            expected = result_of(whole)
        every = max(1, calls // (KILLS + 1))
        with run_folder(tmp_path / "killed") as killed, _counting_endpoint() as endpoint:
            finished: dict[str, str] = {}
            kept = 0
            done = None
            for kill in range(KILLS + 1):
                before = endpoint.reflections
                done = self._run(killed, endpoint, resumes=kill > 0, kill_after=None if kill == KILLS else every)
                now, kept_now = finished_attempts(killed), kept_reflections(killed)
                assert finished.items() <= now.items(), "a finished rollout was run again"
                lost = endpoint.reflections - before - (kept_now - kept)
                assert lost in (0, 1), "a reflection was requested again, or one that was answered is not on disk"
                finished, kept = now, kept_now
            assert done is not None
            assert done.returncode == 0, done.stderr
            found = result_of(killed)
        assert found == expected
        assert kept == reflections
        assert bool(reflections) == self.reflects
        assert json.loads((killed / "runs/run/report.json").read_text())["rollouts"] == len(finished)
        self._check_record(killed)

    def test_a_budget_is_spent_to_the_last_rollout(self, tmp_path: Path) -> None:
        """The store and the record have exactly as many rollouts of the search, also after the run was killed."""
        if self.budget is None:
            return
        with run_folder(tmp_path / "run") as folder, _counting_endpoint() as endpoint:
            more = (f"budget.rollouts={self.budget}",)
            first = self._run(folder, endpoint, more=more, steps=MANY_STEPS, kill_after=self.budget)
            assert first.returncode != 0
            done = self._run(folder, endpoint, resumes=True)
            assert done.returncode == 0, done.stderr
        assert self._check_record(folder) == self.budget
        report = json.loads((folder / "runs/run/report.json").read_text())
        assert report["steps"] < MANY_STEPS

    def test_the_published_prompt_is_worth_no_less_than_the_first(self, tmp_path: Path) -> None:
        """The training process has neither torch nor transformers, and writes the kept prompt into a file."""
        with run_folder(tmp_path / "whole") as folder, _counting_endpoint() as endpoint:
            done = self._run(folder, endpoint)
            assert done.returncode == 0, done.stderr
        report = json.loads((folder / "runs/run/report.json").read_text())
        assert report["success_after"] >= report["success_before"]
        assert (folder / "runs/run/prompts/prompt.txt").is_file()
        assert json.loads((folder / "loaded.json").read_text()) == []

    def _check_record(self, folder: Path) -> int:
        """Return the number of rollouts of the search, which must be the same in the store and in the record."""
        in_store = {rollout_id for rollout_id in finished_attempts(folder) if _OF_THE_SEARCH.match(rollout_id)}
        search = recorded_search(folder)
        if search is not None:
            recorded = [one.rollout_id for one in search.evaluations]
            assert len(recorded) == len(set(recorded)), "a rollout is recorded twice"
            assert set(recorded) == in_store
            assert not search.unused, "an answer of the reflection model was not used again"
        return len(in_store)

    def _run(
        self,
        folder: Path,
        endpoint: "_Endpoint",
        *,
        resumes: bool = False,
        kill_after: int | None = None,
        more: tuple[str, ...] = (),
        steps: int | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Train or resume, and kill the process at its request number `kill_after`, if it makes so many."""
        reflection = (
            f"reflection.endpoint={endpoint.url}",
            f"reflection.model={REFLECTION}",
            "reflection.concurrency=1",
        )
        settings = (*self.settings, *more, *(reflection if self.reflects else ()))
        new = [
            *("agent.py:agent", "--endpoint", endpoint.url, "--tasks", "tasks.jsonl", "--val", "val.jsonl"),
            *("--algorithm", self.algorithm, "--prompt", "prompt=prompt.txt", "--name", "run"),
            *("--steps", str(steps or self.steps), "--concurrency", "2"),
            *(("--tasks-per-step", str(TASKS)) if algorithm_class(self.algorithm).takes_batches else ()),
            *(part for setting in settings for part in ("--set", setting)),
        ]
        (folder / "prompt.txt").write_text(self.START)
        command = [sys.executable, "train.py", "train", *(["--resume", "run"] if resumes else new), "--quiet"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "sk-not-a-real-key"}
        with subprocess.Popen(
            command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            endpoint.watch(None if kill_after is None else endpoint.calls + kill_after, process.kill)
            error = process.communicate(timeout=SECONDS)[1]
        endpoint.watch(None, process.kill)
        return subprocess.CompletedProcess(command, process.returncode, "", error)


def recorded_search(folder: Path) -> PromptSearch | None:
    """Return the search as the algorithm saved it last; None if its state is no search."""
    path = folder / "runs/run/algorithm_state.json"
    states: dict[str, Any] = json.loads(path.read_text())["states"] if path.exists() else {}
    state = states[max(states, key=int)] if states else None
    return msgspec.convert(state, PromptSearch) if isinstance(state, dict) else None


def kept_reflections(folder: Path) -> int:
    """Return the number of answers of the reflection model on disk."""
    search = recorded_search(folder)
    if search is None:
        return 0
    return sum(one.text is not None for one in (search.reflections | search.unused).values())


def result_of(folder: Path) -> list[tuple[int, dict[str, Any], float | None]]:
    """Return for each version its prompts, and the reward of its step."""
    lines = (folder / "runs/run/versions.jsonl").read_text().splitlines()
    versions = {version["version"]: version for version in map(json.loads, lines)}
    return [(number, one["prompts"], one["metrics"].get("reward")) for number, one in sorted(versions.items())]


def finished_attempts(folder: Path) -> dict[str, str]:
    """Return for each rollout that succeeded the id of its attempt; each has only one that succeeded."""
    return asyncio.run(_finished_attempts(f"sqlite:///{folder / 'runs/run/store.db'}"))


async def _finished_attempts(uri: str) -> dict[str, str]:
    store = await open_store(uri, clock=lambda: 0.0)
    try:
        found: dict[str, str] = {}
        for rollout in await store.query_rollouts():
            attempts = await store.query_attempts(rollout.rollout_id)
            succeeded = [attempt for attempt in attempts if attempt.status == "succeeded"]
            assert len(succeeded) <= 1, f"{rollout.rollout_id} was evaluated twice"
            if isinstance(rollout, AttemptedRollout) and rollout.status == "succeeded":
                found[rollout.rollout_id] = rollout.attempt.attempt_id
        return found
    finally:
        await store.close()


class _Endpoint:
    """Endpoint that answers the agent and the reflection model, counts its calls, and kills the run at one of them."""

    def __init__(self) -> None:
        self.url = ""
        self.calls = 0
        """Number of calls of both kinds."""
        self.reflections = 0
        self._at: int | None = None
        self._kill: Callable[[], None] = lambda: None

    def watch(self, at: int | None, kill: Callable[[], None]) -> None:
        """Call `kill` at call number `at`."""
        self._at, self._kill = at, kill

    def answer(self, body: dict[str, Any]) -> str:
        """Return the score of the prompt and its feedback, or the answer of the reflection model."""
        self.calls += 1
        self.reflections += body["model"] == REFLECTION
        if self._at is not None and self.calls >= self._at:
            self._kill()
        if body["model"] == REFLECTION:
            return add_demanded(body["messages"])
        score, feedback = judged(str(body["messages"][0]["content"]))
        return f"{score}\n{feedback}"


@contextmanager
def _counting_endpoint() -> Generator[_Endpoint]:
    endpoint = _Endpoint()
    with chat_endpoint(endpoint.answer) as server:
        endpoint.url = server.url
        yield endpoint


@contextmanager
def run_folder(folder: Path) -> Generator[Path]:
    """Yield a folder with agent, tasks and `train.py`, which is `leyden` and records what it has imported."""
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    rows = [json.dumps(task) + "\n" for task in hinted_tasks(TASKS)]
    (folder / "tasks.jsonl").write_text("".join(rows))
    (folder / "val.jsonl").write_text("".join(rows[:3]))
    (folder / "train.py").write_text(
        "import atexit, json, sys\n"
        "from leyden.core.cli.main import main\n"
        "def note():\n"
        "    loaded = [name for name in ('torch', 'transformers') if name in sys.modules]\n"
        "    open('loaded.json', 'w').write(json.dumps(loaded))\n"
        "if __name__ == '__main__':\n"
        "    atexit.register(note)\n"
        "    main()\n"
    )
    yield folder
