"""`leyden prompts try`, with agents that no adapter knows; an endpoint counts a letter of the prompt."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from provider_formats import PROVIDERS, Script
from provider_servers import provider_server

from leyden.core.cli.main import run
from leyden.core.data.rollout import Rollout
from leyden.core.data.route import Route
from leyden.core.gateway.upstream.litellm_library import library
from leyden.core.store.open import open_store
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.prompt_file import read_prompts
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile
from leyden.core.trainer.serving.endpoint import ModelEndpoint

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_workers")]
AGENT = """
import httpx


def agent(task):
    system = {"role": "system", "content": "Do it."}
    body = {"model": "gpt-4.1-mini", "messages": [system, {"role": "user", "content": task["question"]}]}
    headers = {"Authorization": "Bearer sk-the-agents-own"}
    answer = httpx.post("https://api.openai.com/v1/chat/completions", json=body, headers=headers).json()
    text = answer["choices"][0]["message"]["content"]
    if text == "broken":
        raise ValueError("no number in the answer")
    return text
"""
TEMPLATED = """
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
UNREWARDED = (
    TEMPLATED.replace(", prompt_template", "")
    .replace(
        'prompt = prompt_template.format(question=task["question"])',
        'messages = [{"role": "system", "content": "Do it."}, {"role": "user", "content": task["question"]}]',
    )
    .replace('[{"role": "user", "content": prompt}]', "messages")
    .replace(
        "return float(answer[", 'return None if answer["choices"][0]["message"]["content"] == "0" else float(answer['
    )
)
REWARD = """
def score(task, result):
    return {"length": float(result), "constant": 1.0}


def broken(task, result):
    raise KeyError("answer")
"""
PLACE = "- {name: system, role: system, text: Do it."
COUNT = 6
STORE = "sqlite:///trial.db"
JUDGED = (Route(agent="judge", to="judge"),)


def worth(body: dict[str, Any]) -> str:
    """Number of `a` in the first message, plus 3 for the question that ends with 3; an error for `break`."""
    text = body["messages"][0]["content"]
    if "break" in text:
        return "broken"
    return str(text.count("a") + 3 * body["messages"][-1]["content"].endswith("3"))


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with chat_endpoint(worth) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "agent.py": AGENT,
        "templated.py": TEMPLATED,
        "unrewarded.py": UNREWARDED,
        "reward.py": REWARD,
        "tasks.jsonl": "".join(json.dumps({"question": f"question {number}"}) + "\n" for number in range(COUNT)),
        "own.yaml": f"components:\n{PLACE}}}\n",
        "a.yaml": f"components:\n{PLACE}, new_text: A}}\n",
        "b.yaml": f"components:\n{PLACE}, new_text: aa}}\n",
        "other.yaml": "components:\n- {name: system, role: system, text: Another., new_text: aa}\n",
        "two.yaml": f"components:\n{PLACE}, new_text: aa}}\n- {{name: tool, role: tool, text: T, new_text: U}}\n",
        "break.yaml": f"components:\n{PLACE}, new_text: break}}\n",
        "one.txt": "a {question}",
        "three.txt": "aaa {question}",
        "bad.txt": "{question",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    return tmp_path


def arguments(endpoint: ChatEndpoint, *more: str, agent: str = "agent.py:agent") -> list[str]:
    return ["prompts", "try", agent, "--tasks", "tasks.jsonl", "--endpoint", endpoint.url, *more]


def trial_of(capsys: pytest.CaptureFixture[str], *given: str, code: int = 0) -> tuple[dict[str, Any], str]:
    assert run([*given, "--json"]) == code
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_two_files_are_compared_task_by_task(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(endpoint, "--a", "a.yaml", "--b", "b.yaml", "--reward", "reward.py:score", "-n", "5")
    assert run(given) == 0
    shown = capsys.readouterr()
    assert "A: a.yaml\nB: b.yaml\n" in shown.out
    assert "+2.00…+2.00" in shown.out and "5, 0, 0" in shown.out
    assert "the difference may be chance: B has 5 wins and 0 losses (sign test, 5 %)" in shown.out
    assert 'task 1: {"question":"question 0"}\n  A 1: 0\n  B 3: 2\n' in shown.out
    assert "cost unknown: no price list is known for this endpoint" in shown.out
    assert not shown.err

    endpoint.seen.clear()
    trial, _ = trial_of(capsys, *given, "--repeats", "2")
    found = trial["reward"]
    assert (found["a"], found["b"], found["difference"], found["interval"]) == (1.6, 3.6, 2.0, [2.0, 2.0])
    assert trial["dimensions"]["constant"]["ties"] == 5
    assert trial["dimensions"]["length"]["wins"] == 5
    for variant in ("a", "b"):
        used = trial[variant]
        assert (used["rollouts"], used["calls"], used["failed"]) == (10, 10, 0)
        assert (used["input_tokens"], used["output_tokens"]) == (90, 10)
        assert used["replaced"] == {"system": 10}
        assert used["cost"] is None
        assert used["seconds"] > 0
    systems = [call["body"]["messages"][0]["content"] for call in endpoint.seen]
    assert sorted(systems) == ["A"] * 10 + ["aa"] * 10


def test_one_at_a_time_the_first_variant_alternates(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(endpoint, "--a", "a.yaml", "--b", "b.yaml", "--reward", "reward.py:score", "--concurrency", "1")
    trial_of(capsys, *given, "-n", "3", "--repeats", "2")
    systems = [call["body"]["messages"][0]["content"] for call in endpoint.seen]
    assert systems == ["A", "aa", "aa", "A", "A", "aa", "aa", "A", "A", "aa", "aa", "A"]


def test_a_variant_without_prompts_is_the_agent_as_it_is(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, _ = trial_of(capsys, *arguments(endpoint, "--b", "b.yaml", "--reward", "reward.py:score", "-n", "2"))
    assert (trial["reward"]["a"], trial["reward"]["b"]) == (1.0, 3.0)
    assert trial["a"]["replaced"] == {} and trial["b"]["replaced"] == {"system": 2}
    trial, _ = trial_of(capsys, *arguments(endpoint, "--a", "b.yaml", "--reward", "reward.py:score", "-n", "2"))
    assert trial["reward"]["difference"] == -2.0
    assert run(arguments(endpoint, "--b", "b.yaml", "--reward", "reward.py:score", "-n", "1")) == 0
    shown = capsys.readouterr()
    assert "A: the agent's own prompts\n" in shown.out
    assert "…" not in shown.out.partition("task 1")[0], "one task gives no interval"
    assert "one task gives no interval" in shown.err


def test_a_failed_rollout_counts_0_and_a_missing_reward_counts_nothing(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(endpoint, "--a", "b.yaml", "--b", "break.yaml", "--reward", "reward.py:score", "-n", "4")
    trial, err = trial_of(capsys, *given, code=1)
    assert trial["reward"]["b"] == 0.0 and trial["reward"]["tasks"] == 4
    assert trial["b"]["failed"] == 4 and trial["b"]["unrewarded"] == 0
    assert "4 × ValueError: no number in the answer" in trial["b"]["failures"]
    assert trial["dimensions"] == {}, "a failed rollout has no dimensions"
    assert "B: every rollout failed" in err

    given = arguments(endpoint, "--a", "a.yaml", "--b", "b.yaml", "-n", "4", agent="unrewarded.py:agent")
    trial, err = trial_of(capsys, *given)
    assert (trial["reward"]["tasks"], trial["reward"]["a"], trial["reward"]["b"]) == (1, 3.0, 5.0)
    assert trial["a"]["unrewarded"] == 3
    assert trial["pairs"][0]["a"] is None and trial["pairs"][0]["b"] == 2.0
    assert "3 of 4 tasks have no reward with one variant, and are not compared" in err


def test_texts_that_were_never_replaced_are_named(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--reward", "reward.py:score", "-n", "2"]
    _, err = trial_of(capsys, *arguments(endpoint, "--b", "other.yaml", *given), code=1)
    assert "B: the component 'system' was never replaced, because no call had the text" in err
    assert "this variant sent only the agent's own prompts" in err
    trial, err = trial_of(capsys, *arguments(endpoint, "--b", "two.yaml", *given))
    assert trial["b"]["replaced"] == {"system": 2, "tool": 0}
    assert "B: the component 'tool' was never replaced" in err and "only the agent's own" not in err


def test_without_a_reward_nothing_is_compared(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, err = trial_of(capsys, *arguments(endpoint, "--b", "b.yaml", "-n", "2"), code=1)
    assert trial["reward"] is None and trial["b"]["calls"] == 2
    assert "no task has a reward with both variants: give --reward" in err


def test_templates_are_compared_and_one_that_is_not_used_is_noticed(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = ["--a", "prompt=one.txt", "--b", "prompt=three.txt", "-n", "2"]
    trial, err = trial_of(capsys, *arguments(endpoint, *variants, agent="templated.py:agent"))
    assert (trial["reward"]["a"], trial["reward"]["b"]) == (1.0, 3.0)
    assert not err
    _, err = trial_of(capsys, *arguments(endpoint, *variants, "--reward", "reward.py:score"), code=1)
    assert "the agent does not use the template" in err


def test_a_reward_function_that_fails_ends_the_trial(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(endpoint, "--b", "b.yaml", "--reward", "reward.py:broken")) == 2
    shown = capsys.readouterr()
    assert "KeyError" in shown.err and not shown.out


def test_what_cannot_work_is_one_line_before_anything_runs(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        "give the prompts of one variant or of both, as --b prompts.yaml": (),
        "both variants send the same texts": ("--a", "b.yaml", "--b", "b.yaml"),
        "both variants send the same texts, so": ("--b", "own.yaml"),
        "--b no.yaml: no.yaml cannot be read: No such file": ("--b", "no.yaml"),
        "--b no-run: there is no prompt file no-run, and as a run: no run 'no-run'": ("--b", "no-run"),
        "--b prompt=no.txt: prompt no.txt cannot be read: No such file": ("--b", "prompt=no.txt"),
        "--b =one.txt: write NAME=FILE": ("--b", "=one.txt"),
        "--b prompt=bad.txt: the prompt template cannot be read": ("--b", "prompt=bad.txt"),
        "--b a/b=one.txt: the name 'a/b'": ("--b", "a/b=one.txt"),
        "--b a.yaml: a prompt file was given before with --b": ("--b", "b.yaml", "--b", "a.yaml"),
        "variant B has the prompt template 'prompt', and variant A has not": ("--b", "prompt=one.txt"),
        "--repeats must be at least 1": ("--b", "b.yaml", "--repeats", "0"),
        "--show must not be negative": ("--b", "b.yaml", "--show", "-1"),
        "--count must be at least 1": ("--b", "b.yaml", "-n", "0"),
        "task file no.jsonl does not exist": ("--b", "b.yaml", "--tasks", "no.jsonl"),
        "give either --policy": ("--b", "b.yaml", "--policy", "p"),
        "--policy-a and --policy-b have no effect with --endpoint": ("--policy-a", "p", "--policy-b", "q"),
        "'captures.db' is not a store's URI": ("--b", "b.yaml", "--store", "captures.db"),
        "no/folder/s.db": ("--b", "b.yaml", "--store", "sqlite:///no/folder/s.db"),
    }
    for says, given in cases.items():
        assert run(arguments(endpoint, *given)) == 2, says
        shown = capsys.readouterr()
        assert says in shown.err
        assert shown.err.count("\n") == 1, shown.err
        assert not shown.out
    assert not endpoint.seen


def test_a_policy_that_would_not_answer_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(folder / "runs", RunConfig(name="prompts", agent="a", endpoint=ModelEndpoint(url="http://127.0.0.1:1/v1")))
    made_run(folder / "runs", RunConfig(name="two", agent="a", policy={"policy": "p", "judge": "q"}, routes=JUDGED))
    made_run(folder / "runs", RunConfig(name="one", agent="a", policy="p"), weights=None)
    cases = {
        "--policy-b answers one variant: give --policy-a for the other, or --policy": ("--policy-b", "one:0"),
        "--policy has no effect with both": ("--policy", "p", "--policy-a", "one:0", "--policy-b", "one:1"),
        "both variants send the same texts": ("--policy-a", "one:0", "--policy-b", "one:0"),
        "--policy-b none:3: no run 'none' in runs; runs there: one, prompts, two": both("one:0", "none:3"),
        "--policy-b one:7: run 'one' has no version '7'": both("one:0", "one:7"),
        "--policy-b one:1: the weights of version 1 of run 'one' are not kept": both("one:0", "one:1"),
        "--policy-b prompts: the versions of this run are prompts": both("one:0", "prompts"),
        "--policy-a two:0: the run trains several policies (policy, judge)": both("two:0", "one:0"),
    }
    for says, given in cases.items():
        options = ["--tasks", "tasks.jsonl", "--reward", "reward.py:score", *given]
        assert run(["prompts", "try", "agent.py:agent", *options]) == 2, says
        shown = capsys.readouterr()
        assert says in shown.err
        assert shown.err.count("\n") == 1, shown.err
        assert not shown.out


def both(a: str, b: str) -> tuple[str, ...]:
    return ("--policy-a", a, "--policy-b", b)


def made_run(runs: Path, config: RunConfig, weights: str | None = "checkpoints/step-1") -> None:
    """Write a run with two versions, of which no file has weights."""
    versions = VersionFile(RunFolder.create(runs, config, [{"question": "q"}], {}).path)
    policy = config.policy if isinstance(config.policy, str) else None
    for number in (0, 1):
        versions.append(
            ModelVersion(
                run=config.name,
                version=number,
                parent=None,
                created=1.0,
                algorithm="lightning_rl",
                seed=0,
                policy=policy,
                weights=weights if number else None,
            )
        )


async def rollouts_of(uri: str) -> list[Rollout]:
    store = await open_store(uri)
    found = list(await store.query_rollouts())
    await store.close()
    return found


def test_a_store_has_the_rollouts_of_several_trials(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(endpoint, "--b", "b.yaml", "--reward", "reward.py:score", "-n", "2", "--store", STORE)
    trial, _ = trial_of(capsys, *given)
    assert trial["verdict"] == "the difference may be chance: B has 2 wins and 0 losses (sign test, 5 %)"

    found = asyncio.run(rollouts_of(STORE))
    assert [(one.status, one.mode) for one in found] == [("succeeded", "test")] * 4
    keys = ("variant", "row", "repeat")
    assert [[one.metadata[key] for key in keys] for one in found] == [
        ["a", 0, 0],
        ["b", 0, 0],
        ["b", 1, 0],
        ["a", 1, 0],
    ]

    trial_of(capsys, *given)
    trials = [one.metadata["trial"] for one in asyncio.run(rollouts_of(STORE))]
    assert sorted(map(trials.count, set(trials))) == [4, 4]


def test_rollouts_of_other_programs_in_the_store_are_left_alone(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    async def enqueue() -> None:
        store = await open_store(STORE)
        await store.enqueue_rollout({"question": "of another process"}, rollout_id="other")
        await store.close()

    asyncio.run(enqueue())
    assert run(arguments(endpoint, "--b", "b.yaml", "--reward", "reward.py:score", "--store", STORE)) == 0
    found = {one.rollout_id: one.status for one in asyncio.run(rollouts_of(STORE))}
    assert found.pop("other") == "queuing"
    assert set(found.values()) == {"succeeded"}


def test_a_trial_that_ends_early_leaves_nothing_under_way(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--b", "b.yaml", "--reward", "reward.py:broken", "--repeats", "50", "--store", STORE]
    assert run(arguments(endpoint, *given)) == 2
    assert "KeyError" in capsys.readouterr().err
    statuses = {one.status for one in asyncio.run(rollouts_of(STORE))}
    assert "cancelled" in statuses and statuses <= {"failed", "cancelled"}


def test_both_variants_may_be_commands_calls(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import json, os, sys, urllib.request\n"
        "messages = [{'role': 'system', 'content': 'Do it.'}, {'role': 'user', 'content': sys.argv[1]}]\n"
        "url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "body = json.dumps({'model': 'm', 'messages': messages}).encode()\n"
        "answer = json.load(urllib.request.urlopen(urllib.request.Request(url, data=body)))\n"
        "print(answer['choices'][0]['message']['content'])\n"
    )
    (folder / "ask.py").write_text(code)
    (folder / "command_reward.py").write_text("def score(task, result):\n    return float(str(result).strip())\n")
    options = ["--tasks", "tasks.jsonl", "-n", "2", "--endpoint", endpoint.url, "--reward", "command_reward.py:score"]
    command = ["prompts", "try", *options, "--b", "b.yaml", "--json", "--", "python", "ask.py", "{question}"]
    assert run(command) == 0
    trial = json.loads(capsys.readouterr().out)
    assert trial["reward"]["difference"] == 2.0


def test_a_providers_calls_cost_what_the_price_list_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with provider_server("anthropic") as server:
        server.script = Script(pieces=("4",))
        for name, value in PROVIDERS["anthropic"].variables(server.url, "a-key-for-this-test-alone").items():
            monkeypatch.setenv(name, value)
        given = ["--tasks", "tasks.jsonl", "-n", "2", "--endpoint", "anthropic/claude-sonnet-4-5", "--b", "b.yaml"]
        trial, err = trial_of(capsys, "prompts", "try", "agent.py:agent", *given, "--reward", "reward.py:score")
    assert not err
    assert trial["cost_unknown"] == ""
    listed = library().model_cost["claude-sonnet-4-5"]
    for variant in (trial["a"], trial["b"]):
        assert variant["input_tokens"] > 0
        price = variant["input_tokens"] * listed["input_cost_per_token"]
        assert variant["cost"] == pytest.approx(price + variant["output_tokens"] * listed["output_cost_per_token"])


def test_the_means_are_those_of_the_tasks_means(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the same numbers, computed from the pairs alone."""
    given = arguments(endpoint, "--b", "b.yaml", "--reward", "reward.py:score", "--repeats", "2")
    trial, _ = trial_of(capsys, *given)
    pairs = trial["pairs"]
    assert len(pairs) == COUNT
    assert trial["reward"]["a"] == fmean(pair["a"] for pair in pairs)
    assert trial["reward"]["difference"] == pytest.approx(fmean(pair["b"] - pair["a"] for pair in pairs))


def test_the_file_that_was_tried_can_be_applied(
    folder: Path, endpoint: ChatEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_prompts("b.yaml").changed
    assert run(["prompts", "apply", "b.yaml"]) == 0
    said = capsys.readouterr().out
    assert "-Do it.\n+aa\n\ntext to paste:\naa\n" in said
    assert "let `leyden gateway` answer it, with --endpoint or --policy, and --prompts b.yaml\n" in said
