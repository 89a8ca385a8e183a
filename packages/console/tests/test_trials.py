"""Trials: what a run offers, the commands that are started, and rollouts that are read while they run."""

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from console_runs import made_run
from starlette.testclient import TestClient

from leyden.console.actions.jobs import Jobs
from leyden.console.actions.trial_command import TrialRequest, TrialSource, Variant
from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.route import Route
from leyden.core.errors import PromptError, RunError, UsageError
from leyden.core.testing.servers.chat_endpoint import chat_endpoint
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.prompt_file import read_prompts
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile
from leyden.core.trainer.serving.endpoint import ModelEndpoint
from leyden.core.trainer.serving.provider import ProviderEndpoint

SYSTEM = PromptComponent(name="system", role="system", text="Do it.", new_text="Do it well.")
EDITS = {"prompts": PromptEdits(components=(SYSTEM,))}
TASKS = 3
AGENT = """
import httpx


def agent(task):
    messages = [{"role": "system", "content": "Do it."}, {"role": "user", "content": task["question"]}]
    body = {"model": "m", "messages": messages}
    answer = httpx.post("https://api.openai.com/v1/chat/completions", json=body, headers={"Authorization": "Bearer k"})
    return answer.json()["choices"][0]["message"]["content"]


def score(task, result):
    return float(result)
"""


def written(runs: Path, **fields: Any) -> TrialSource:
    """A run whose folder has training tasks and one held-out set."""
    held_out = (EvaluationSet(name="val", source="val.jsonl"),)
    settings: dict[str, Any] = {"agent": "agent.py:agent", "policy": "p", "held_out": held_out, **fields}
    config = RunConfig(name="tried", **settings)
    tasks = [{"question": f"question {number}"} for number in range(TASKS)]
    return TrialSource(RunFolder.create(runs, config, tasks, {"val": tasks}).path)


def versions(source: TrialSource, *weights: str | None, **fields: Any) -> TrialSource:
    """The source again, with versions of these weights."""
    for number, own in enumerate(weights):
        VersionFile(source.folder.path).append(
            ModelVersion(
                run="tried",
                version=number,
                parent=None,
                created=1.0,
                algorithm="lightning_rl",
                seed=0,
                weights=own,
                **fields,
            )
        )
        if own is not None:
            (source.folder.path / own).mkdir(parents=True)
            (source.folder.path / own / "progress.json").write_text("{}")
    return TrialSource(source.folder.path)


def words(source: TrialSource, folder: Path, **given: Any) -> list[str]:
    """The words of the command for a request, without what all of them have."""
    trial = msgspec.convert({"a": {}, "b": {}, "tasks": "val", **given}, TrialRequest)
    found = source.compare(trial, folder, "sqlite:///s.db", None)
    assert found[:2] == ["prompts", "try"]
    assert found[found.index("--tasks") + 1] == str(source.folder.tasks_file("val"))
    return found


def after(found: list[str], option: str) -> list[str]:
    """The values of an option."""
    return [found[at + 1] for at, word in enumerate(found) if word == option]


def test_edited_texts_are_written_into_a_prompt_file(tmp_path: Path) -> None:
    source = written(tmp_path / "runs", prompt_edits=EDITS, reward="agent.py:score", seed=1)
    edited = {"prompts": "edited", "texts": {"system": "Do it at once."}}

    found = words(source, tmp_path, b=edited, count=5, repeats=2)

    assert found[2] == "agent.py:agent"
    assert after(found, "--b") == [str(tmp_path / "b.yaml")] and not after(found, "--a")
    (component,) = read_prompts(tmp_path / "b.yaml").components
    assert (component.text, component.new_text) == ("Do it.", "Do it at once.")
    assert [after(found, name) for name in ("-n", "--repeats", "--policy", "--reward", "--store", "--runs")] == [
        ["5"],
        ["2"],
        ["p"],
        ["agent.py:score"],
        ["sqlite:///s.db"],
        [str(tmp_path / "runs")],
    ]
    assert source.texts(None)[0].text == "Do it.", "the run began with another text; the agent's own is its own"


def test_a_text_that_no_component_has_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "runs", prompt_edits=EDITS)
    for texts, says in (({"other": "x"}, "no prompt component 'other'"), ({"system": "{v1}"}, "v1")):
        with pytest.raises(PromptError, match=says):
            words(source, tmp_path, b={"prompts": "edited", "texts": texts})
    with pytest.raises(UsageError, match="variant B: the text of the prompt 'system' is empty"):
        words(source, tmp_path, b={"prompts": "edited", "texts": {"system": " \n"}})


def test_versions_of_the_policy_answer_as_run_and_number(tmp_path: Path) -> None:
    source = versions(written(tmp_path / "runs"), None, None, "checkpoints/step-2")

    found = words(source, tmp_path, a={"policy": 0}, b={"policy": 2})

    assert source.policies() == [0, 2]
    assert (after(found, "--policy-a"), after(found, "--policy-b")) == (["tried:0"], ["tried:2"])
    assert not after(found, "--policy")
    assert source.label(msgspec.convert({"a": {}, "b": {"policy": 2}, "tasks": ""}, TrialRequest).b).endswith(
        "version 2"
    )


def test_prompts_of_versions_and_templates_are_named(tmp_path: Path) -> None:
    template = PromptTemplate(template="Answer {question}")
    source = versions(
        written(tmp_path / "runs", prompts={"ask": template}), None, None, prompts={"ask": template}, resources_id="r"
    )
    edited = {"prompts": "edited", "texts": {"ask": "Quickly: {question}"}}

    found = words(source, tmp_path, a={"prompts": "version", "version": 0}, b=edited)

    assert after(found, "--a") == ["tried:0"]
    (given,) = after(found, "--b")
    assert given == f"ask={tmp_path / 'b-ask.txt'}" and (tmp_path / "b-ask.txt").read_text() == "Quickly: {question}"
    sent = [
        source.sent(msgspec.convert(one, Variant), None)
        for one in ({}, edited, {"prompts": "version", "version": 0}, {"prompts": "version", "version": 9})
    ]
    own = {"ask": "Answer {question}"}
    assert sent == [own, {"ask": "Quickly: {question}"}, own, {}]
    with pytest.raises(UsageError, match="variant A: version 9 of this run has no prompts"):
        words(source, tmp_path, a={"prompts": "version", "version": 9})
    assert "--b ask=new.txt" in source.shell_commands("sqlite:///trial.db")["try"]


def test_an_endpoint_and_a_command_are_those_of_the_run(tmp_path: Path) -> None:
    endpoint = ModelEndpoint(url="http://127.0.0.1:1/v1", model="m", key_env="OWN_KEY")
    source = written(
        tmp_path / "runs",
        policy=None,
        endpoint=endpoint,
        agent=("python", "ask.py", "{question}"),
        env=("A_TOKEN",),
        provider=ProviderEndpoint(url="http://127.0.0.1:2/v1"),
        algorithm="gepa",
    )

    found = words(source, tmp_path)

    assert found[found.index("--") :] == ["--", "python", "ask.py", "{question}"]
    assert [after(found, name) for name in ("--endpoint", "--model", "--api-key-env", "--env", "--provider")] == [
        [endpoint.url],
        ["m"],
        ["OWN_KEY"],
        ["A_TOKEN"],
        ["http://127.0.0.1:2/v1"],
    ]
    assert source.policies() == []


def test_a_run_whose_agent_cannot_be_started_says_why(tmp_path: Path) -> None:
    judged = {"policy": {"policy": "p", "judge": "q"}, "routes": (Route(agent="judge", to="judge"),)}
    cases: dict[str, dict[str, Any]] = {
        "was given in Python, as <module.Agent>": {"agent": "<module.Agent>"},
        "has no agent": {"agent": None, "held_out": ()},
        "several models answer": judged,
        "has a secret": {"agent": ("run", "--token", "***")},
    }
    for number, (says, fields) in enumerate(cases.items()):
        with pytest.raises(RunError, match=says):
            written(tmp_path / str(number), **fields)


@pytest.fixture
def tried(tmp_path: Path) -> Generator[TestClient]:
    """A console with actions and a run without recorded prompts, whose endpoint counts the letter `a` of the prompt."""
    (tmp_path / "agent.py").write_text(AGENT)
    runs = tmp_path / "runs"
    with chat_endpoint(lambda body: str(body["messages"][0]["content"].count("a"))) as endpoint:
        agent = f"{tmp_path}/agent.py"
        served = ModelEndpoint(url=endpoint.url)
        written(runs, agent=f"{agent}:agent", reward=f"{agent}:score", policy=None, endpoint=served, algorithm="gepa")
        made_run(runs)
        with TestClient(Console(Catalogue([runs]), Jobs()).application()) as client:
            yield client


def post(client: TestClient, path: str, body: Any, status: int = 200) -> Any:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def get(client: TestClient, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def ended(client: TestClient, job: str) -> Any:
    found: dict[str, Any] = {}
    for _ in range(600):
        found = get(client, f"jobs/{job}")
        if found["ended"] is not None:
            return found
        time.sleep(0.1)
    pytest.fail(f"job {job} runs too long: {found}")


@pytest.mark.integration
def test_prompts_are_found_and_two_variants_compared_while_the_page_watches(tried: TestClient) -> None:
    offer = get(tried, "runs/tried/try")
    assert offer["problem"] is None and offer["texts"] == [] and offer["policies"] == []
    assert [one["name"] for one in offer["tasks"]] == ["val", "training"]

    found = ended(tried, post(tried, "runs/tried/try/find", {"tasks": "val"})["id"])
    assert found["state"] == "finished", found
    (text,) = get(tried, "runs/tried/try")["texts"]
    assert text["text"] == "Do it."

    edited = {"prompts": "edited", "texts": {text["name"]: "a a a"}}
    job = post(tried, "runs/tried/try", {"a": {}, "b": edited, "tasks": "val", "count": 3, "repeats": 2})
    assert job["subject"]["b"] == "edited prompts"
    seen: dict[str, Any] = {}
    cursor, answer = "?after=0", {}
    for _ in range(600):
        answer = get(tried, f"jobs/{job['id']}/trial{cursor}")
        assert answer["problem"] is None
        if cursor == "?after=0":
            assert [task["question"] for task in answer["tasks"]] == ["question 0", "question 1", "question 2"]
            assert answer["texts"] == {"a": {text["name"]: "Do it."}, "b": {text["name"]: "a a a"}}
        seen |= {one["id"]: one for one in answer["rollouts"]}
        cursor = f"?after={answer['next']}&generation={answer['generation']}"
        if answer["ended"]:
            break
        time.sleep(0.1)

    assert ended(tried, job["id"])["result"]["verdict"].startswith("the difference may be chance: B has 3 wins")
    places = {(one["variant"], one["row"], one["repeat"]): one for one in seen.values()}
    assert len(places) == len(seen) == 12
    assert {(key[0], one["status"], one["reward"]) for key, one in places.items()} == {
        ("a", "succeeded", 0.0),
        ("b", "succeeded", 3.0),
    }
    detail = get(tried, f"runs/{answer['key']}/rollouts/{places['b', 1, 0]['id']}")
    spans = detail["attempts"][0]["spans"]
    assert detail["reward"] == 3.0 and {span["kind"] for span in spans} >= {"model", "reward", "result"}
    (call,) = [span for span in spans if span["kind"] == "model"]
    shown = get(tried, f"runs/{answer['key']}/rollouts/{places['b', 1, 0]['id']}/calls/{call['id']}")
    assert "a a a" in json.dumps(shown), "the model read the edited text"
    assert answer["key"] not in [run["key"] for run in get(tried, "runs")["runs"]]


@pytest.mark.integration
def test_a_request_that_cannot_work_starts_nothing(tried: TestClient) -> None:
    right: dict[str, Any] = {"a": {}, "b": {}, "tasks": "val"}
    cases: dict[str, dict[str, Any]] = {
        "unknown field `more`": {**right, "more": 1},
        "count must be 1 to 1000, got 0": {**right, "count": 0},
        "repeats must be 1 to 100": {**right, "repeats": 101},
        "no tasks '../val'": {**right, "tasks": "../val"},
        "there is no prompt component 'x'": {**right, "b": {"prompts": "edited", "texts": {"x": "y"}}},
    }
    for says, body in cases.items():
        answer = tried.post("/api/runs/tried/try", json=body)
        assert answer.status_code in (409, 422) and says in answer.json()["error"], answer.text
    assert get(tried, "jobs") == []
    get(tried, "jobs/1/trial", 404)


@pytest.mark.integration
def test_a_trial_that_fails_says_why_and_has_no_rollouts(tried: TestClient) -> None:
    job = post(tried, "runs/tried/try", {"a": {}, "b": {}, "tasks": "val"})

    done = ended(tried, job["id"])

    assert (done["state"], done["exit_code"], done["result"]) == ("failed", 2, None)
    assert "give the prompts of one variant" in done["output"][0]
    answer = get(tried, f"jobs/{job['id']}/trial")
    assert (answer["rollouts"], answer["ended"], answer["problem"]) == ([], True, None)
    assert get(tried, f"runs/{answer['key']}")["pages"] == ["rollouts"]


@pytest.mark.integration
def test_a_trial_that_is_stopped_keeps_what_it_has_recorded(tried: TestClient) -> None:
    ended(tried, post(tried, "runs/tried/try/find", {"tasks": "val"})["id"])
    (text,) = get(tried, "runs/tried/try")["texts"]
    edited = {"prompts": "edited", "texts": {text["name"]: "a"}}
    job = post(tried, "runs/tried/try", {"a": {}, "b": edited, "tasks": "val", "repeats": 100})
    for _ in range(600):
        if "succeeded" in [one["status"] for one in get(tried, f"jobs/{job['id']}/trial")["rollouts"]]:
            break
        time.sleep(0.1)

    post(tried, f"jobs/{job['id']}/stop", {})

    assert ended(tried, job["id"])["state"] == "stopped"
    answer = get(tried, f"jobs/{job['id']}/trial")
    statuses = {one["status"] for one in answer["rollouts"]}
    assert answer["ended"] and len(answer["rollouts"]) == 600
    assert {"succeeded", "cancelled"} <= statuses <= {"succeeded", "cancelled", "failed"}


def test_a_console_without_actions_shows_the_commands_alone(folder: RunFolder, console: TestClient) -> None:
    offer = get(console, "runs/small/try")

    assert offer["commands"]["find"].startswith("leyden prompts find agent.py:agent --tasks ")
    assert " --b prompts.yaml " in offer["commands"]["try"]
    assert " --store sqlite:///trial.db " in offer["commands"]["try"]
    assert console.post("/api/runs/small/try", json={}).status_code == 405
    get(console, "jobs/1/trial", 404)


def test_a_run_that_is_read_from_a_store_cannot_be_tried(folder: RunFolder) -> None:
    with TestClient(Console(Catalogue([], [folder.store_location.uri])).application()) as client:
        (run,) = get(client, "runs")["runs"]
        assert "not on this machine" in get(client, f"runs/{run['key']}/try")["problem"]
