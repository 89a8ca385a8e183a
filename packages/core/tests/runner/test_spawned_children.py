"""Agents whose work is done by processes that Python starts, run by a real worker from a file of their own."""

from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.resources import LLM, NamedResources
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint
from leyden.core.trainer.services.dev import DevPlan, dry_run

PROVIDER = "https://api.provider.invalid/v1"
AGENT = f'''
import json
import multiprocessing
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess

import httpx

URL = "{PROVIDER}/chat/completions"


@dataclass
class Question:
    text: str


def body(question: Question) -> dict:
    return {{"model": "big", "messages": [{{"role": "user", "content": question.text}}]}}


def ask(question: Question) -> str:
    headers = {{"authorization": "Bearer sk-the-providers"}}
    return httpx.post(URL, json=body(question), headers=headers).json()["choices"][0]["message"]["content"]


def ask_with_urllib(question: Question) -> str:
    request = urllib.request.Request(URL, json.dumps(body(question)).encode(), {{"content-type": "application/json"}})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def put(queue, question: Question) -> None:
    queue.put(ask(question))


class Asker(SpawnProcess):
    """Pickled by its own class, which is of this module."""

    def __init__(self, queue, question: Question) -> None:
        super().__init__()
        self.queue, self.question = queue, question

    def run(self) -> None:
        put(self.queue, self.question)


def pool(task) -> list[str]:
    with multiprocessing.get_context(task["method"]).Pool(1) as workers:
        return workers.map(ask, [Question("one"), Question("two")])


def executor(task) -> list[str]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(task["method"])) as workers:
        return list(workers.map(ask_with_urllib, [Question("one"), Question("two")]))


def processes(task) -> list[str]:
    context = multiprocessing.get_context(task["method"])
    queue, said = context.SimpleQueue(), []
    for process in (context.Process(target=put, args=(queue, Question("one"))), Asker(queue, Question("two"))):
        process.start()
        said.append(queue.get())
        process.join()
    return said


if __name__ == "__main__":
    print(pool({{"method": "spawn"}}))
'''


@pytest.mark.timeout(600)
@pytest.mark.parametrize("agent", ["pool", "executor", "processes"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_they_find_the_agents_module_and_their_calls_are_the_attempts(method: str, agent: str, tmp_path: Path) -> None:
    file = tmp_path / "my-agent.py"  # a name that no import statement could have
    file.write_text(AGENT)
    with chat_endpoint("well") as endpoint:
        [found] = dry_run(plan(endpoint), f"{file}:{agent}", [{"method": method}], show=False)
    assert found.rollout.status == "succeeded", found.attempts[0][0].metadata
    assert sorted(call["body"]["messages"][0]["content"] for call in endpoint.seen) == ["one", "two"]
    assert [call["key"] for call in endpoint.seen] == [None, None]
    [(_, spans)] = found.attempts
    assert len([span for span in spans if span.name == "chat big"]) == 2


FORKING = """
import multiprocessing


def square(number):
    return number * number


def agent(task):
    for _ in range(8):
        with multiprocessing.get_context("fork").Pool(2) as workers:  # ends them by SIGTERM
            assert workers.map(square, [1, 2]) == [1, 4]
    return "done"
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("isolation", ["shared", "process"])
def test_a_forked_pool_ends_its_own_processes_only(isolation: str, tmp_path: Path) -> None:
    file = tmp_path / "forking.py"
    file.write_text(FORKING)
    with chat_endpoint("well") as endpoint:
        found = dry_run(plan(endpoint, isolation=isolation), f"{file}:agent", [{"n": 1}, {"n": 2}], show=False)
    for one in found:
        assert one.rollout.status == "succeeded", one.attempts[0][0].metadata
        assert len(one.attempts) == 1, [attempt.metadata for attempt, _ in one.attempts]


def plan(endpoint: ChatEndpoint, **more: Any) -> DevPlan:
    resources: NamedResources = {"main_llm": LLM(endpoint=endpoint.url, model="local")}
    return DevPlan(resources=resources, timeout_seconds=60, **more)
