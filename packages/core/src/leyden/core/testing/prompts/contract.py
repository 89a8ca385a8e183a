"""`PromptAlgorithmContract`: what every algorithm that trains prompts promises, as a test class to subclass.

The tests run `leyden train` in a folder of their own, with an agent whose reward depends on its prompt, against an
endpoint of this process.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store
from leyden.core.testing.servers.chat_endpoint import chat_endpoint

KILLS = 10
"""Number of points at which the run is killed."""
TASKS = 4
SECONDS = 120
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
    return float(answer["choices"][0]["message"]["content"])
"""


class PromptAlgorithmContract:
    """Subclass it, and set the algorithm and its settings. The prompt is called `prompt` and begins as `START`.

    An answer is worth more the more letters `a` its prompt has, up to ten.
    """

    START = "{question}"
    algorithm: str
    """Name or import string of the algorithm."""
    settings: tuple[str, ...] = ()
    """Its options, each as `key=value`."""
    steps = 3

    def test_a_run_killed_at_ten_points_evaluates_no_rollout_twice(self, tmp_path: Path) -> None:
        """Every rollout that had finished keeps its attempt, and the result is that of a run without kills."""
        with run_folder(tmp_path / "whole") as whole, _counting_endpoint() as endpoint:
            assert self._run(whole, endpoint).returncode == 0
            calls = endpoint.calls
            expected = result_of(whole)
        every = max(1, calls // (KILLS + 1))
        with run_folder(tmp_path / "killed") as killed, _counting_endpoint() as endpoint:
            finished: dict[str, str] = {}
            done = None
            for kill in range(KILLS + 1):
                done = self._run(killed, endpoint, resumes=kill > 0, kill_after=None if kill == KILLS else every)
                now = finished_attempts(killed)
                assert finished.items() <= now.items(), "a finished rollout was run again"
                finished = now
            assert done is not None
            assert done.returncode == 0, done.stderr
            found = result_of(killed)
        assert found == expected
        assert json.loads((killed / "runs/run/report.json").read_text())["rollouts"] == len(finished)

    def test_the_published_prompt_is_worth_no_less_than_the_first(self, tmp_path: Path) -> None:
        """The training process has neither torch nor transformers, and writes the kept prompt into a file."""
        with run_folder(tmp_path / "whole") as folder, _counting_endpoint() as endpoint:
            done = self._run(folder, endpoint)
            assert done.returncode == 0, done.stderr
        report = json.loads((folder / "runs/run/report.json").read_text())
        assert report["success_after"] >= report["success_before"]
        assert (folder / "runs/run/prompts/prompt.txt").is_file()
        assert json.loads((folder / "loaded.json").read_text()) == []

    def _run(
        self, folder: Path, endpoint: "_Endpoint", *, resumes: bool = False, kill_after: int | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Train or resume, and kill the process at its request number `kill_after`, if it makes so many."""
        new = [
            *("agent.py:agent", "--endpoint", endpoint.url, "--tasks", "tasks.jsonl", "--val", "val.jsonl"),
            *("--algorithm", self.algorithm, "--prompt", "prompt=prompt.txt", "--name", "run"),
            *("--steps", str(self.steps), "--tasks-per-step", str(TASKS), "--concurrency", "2"),
            *(part for setting in self.settings for part in ("--set", setting)),
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
    """Endpoint that counts its calls, and kills the run at one of them."""

    def __init__(self) -> None:
        self.url = ""
        self.calls = 0
        self._at: int | None = None
        self._kill: Callable[[], None] = lambda: None

    def watch(self, at: int | None, kill: Callable[[], None]) -> None:
        """Call `kill` at call number `at`."""
        self._at, self._kill = at, kill

    def answer(self, body: dict[str, Any]) -> str:
        """Return the worth of the prompt as text."""
        self.calls += 1
        if self._at is not None and self.calls >= self._at:
            self._kill()
        return f"{min(10, str(body['messages'][0]['content']).count('a')) / 10}"


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
    rows = [json.dumps({"question": f"question {number}"}) + "\n" for number in range(TASKS)]
    (folder / "tasks.jsonl").write_text("".join(rows))
    (folder / "val.jsonl").write_text("".join(rows[:2]))
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
