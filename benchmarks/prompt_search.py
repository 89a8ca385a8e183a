"""Wall time of a search for a prompt by GEPA: Leyden with several agents in flight, beside the library by itself.

The same agent makes one call to an endpoint that answers after `--wait` seconds. The library's `optimize` runs it by
its default adapter: with a function in place of a model, which it calls once for each task in turn, and with a model
name, for which LiteLLM sends ten calls at once. Leyden trains the agent as it is, with each number of rollouts in
flight. Tasks, evaluator, scripted reflection model, minibatch and limit of evaluations are the same. The library ends
after the batch that reaches the limit, so the ratio is that of seconds for each call.

    python benchmarks/prompt_search.py --in-flight 1 8 32 --json prompt_search.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI

from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint

HERE = Path(__file__)
TRAINING = HERE.parents[1] / "scripts" / "prompt_training"
sys.path.insert(0, str(TRAINING))

import local_model  # noqa: E402
import measures  # noqa: E402
import reflection  # noqa: E402
import reward  # noqa: E402

PROMPT = "You reply to a customer abroad who asks about a measure."
MODEL, KEY = "gpt-4.1-mini", "sk-your-key-here"

client = AsyncOpenAI(api_key=KEY)


async def agent(question: str) -> str:
    """Reply to a customer: the agent that Leyden trains."""
    messages: Any = [{"role": "system", "content": PROMPT}, {"role": "user", "content": question}]
    completion = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    return completion.choices[0].message.content or ""


@contextmanager
def waiting_endpoint(seconds: float) -> Generator[ChatEndpoint]:
    """Serve the local model, which answers each call after so many seconds."""

    def answer(body: dict[str, Any]) -> str:
        time.sleep(seconds)
        return local_model.answer(body)

    with chat_endpoint(answer) as endpoint:
        yield endpoint


def by_library(options: argparse.Namespace, url: str, *, model_name: bool) -> float:
    """Return the seconds of the library's search."""
    from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult
    from gepa.api import optimize  # pyright: ignore[reportUnknownVariableType]

    rows = {row["question"]: row for row in measures.tasks(options.tasks * 2, held_out=False)}
    data: list[Any] = [{"input": question, "additional_context": {}, "answer": ""} for question in rows]
    own = OpenAI(base_url=url, api_key=KEY)

    def call(messages: Sequence[Any]) -> str:
        completion = own.chat.completions.create(model=MODEL, messages=list(messages), temperature=0)
        return completion.choices[0].message.content or ""

    def evaluate(data: Any, response: str) -> Any:
        return EvaluationResult(*reward.measures(rows[data["input"]], response))

    def reflect(prompt: Any) -> str:
        return reflection.propose([{"role": "user", "content": prompt}])

    adapter: Any = DefaultAdapter(
        f"openai/{MODEL}" if model_name else call,
        evaluator=evaluate,
        litellm_batch_completion_kwargs={"api_base": url, "api_key": KEY, "temperature": 0},
    )
    began = time.perf_counter()
    optimize(
        seed_candidate={"system": PROMPT},
        trainset=data[: options.tasks],
        valset=data[options.tasks :],
        adapter=adapter,
        reflection_lm=reflect,
        reflection_minibatch_size=options.minibatch,
        max_metric_calls=options.evaluations,
        seed=0,
    )
    return time.perf_counter() - began


def by_leyden(options: argparse.Namespace, url: str, in_flight: int) -> tuple[float, float]:
    """Return the seconds of the search by `leyden train`, and those of the whole command."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = measures.tasks(options.tasks * 2, held_out=False)
        (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        component = {"name": "system", "role": "system", "text": PROMPT}
        (folder / "prompts.yaml").write_text(json.dumps({"components": [component]}))
        settings = {
            "budget.rollouts": options.evaluations,
            "minibatch": options.minibatch,
            "merges": 0,
            "reflection.function": f"{TRAINING}/reflection.py:propose",
        }
        command = [sys.executable, "-m", "leyden.core.cli", "train", f"{HERE.resolve()}:agent", "--endpoint", url]
        command += ["--tasks", "tasks.jsonl", "--reward", f"{TRAINING}/reward.py:measures", "--prompts", "prompts.yaml"]
        command += ["--algorithm", "gepa", "--steps", "1000", "--concurrency", str(in_flight), "--name", "run"]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        began = time.perf_counter()
        environment = os.environ | {"OPENAI_API_KEY": KEY}
        subprocess.run([*command, "--quiet"], cwd=folder, env=environment, check=True)
        whole = time.perf_counter() - began
        phases = json.loads((folder / "runs/run/report.json").read_text())["seconds_by_phase"]
        lines = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
        return sum(line.get("seconds", 0.0) for line in lines) + phases.get("check", 0.0), whole


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--wait", type=float, default=0.2, help="seconds of a model call")
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=16, help="training tasks, and as many validation tasks")
    parser.add_argument("--minibatch", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    found: dict[str, dict[str, float]] = {}
    with waiting_endpoint(options.wait) as endpoint:

        def measured(name: str, search: Callable[[], tuple[float, float]]) -> None:
            before = len(endpoint.seen)
            seconds, whole = search()
            calls = len(endpoint.seen) - before
            found[name] = {"calls": calls, "search": seconds, "whole": whole, "seconds_per_call": seconds / calls}
            first = next(iter(found.values()))["seconds_per_call"]
            found[name]["ratio"] = first / found[name]["seconds_per_call"]
            print(name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)

        for name in ("function", "model name"):

            def library(name: str = name) -> tuple[float, float]:
                seconds = by_library(options, endpoint.url, model_name=name == "model name")
                return seconds, seconds

            measured(f"library, {name}", library)
        for in_flight in options.in_flight:

            def search(in_flight: int = in_flight) -> tuple[float, float]:
                return by_leyden(options, endpoint.url, in_flight)

            measured(f"leyden, {in_flight} in flight", search)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
