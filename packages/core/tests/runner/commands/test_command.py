"""Commands as agents, with real processes."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import verify
from leyden.core.data.rollout import RolloutConfig, Task
from leyden.core.errors import AgentNotFound, TaskError, UsageError
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.commands import command, process
from leyden.core.runner.commands.command import CommandAgent, environment
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.memory import MemoryStore
from leyden.core.testing import factories
from leyden.core.testing.running import (
    NO_GATEWAY,
    TEST_KEY,
    error_of,
    finished,
    patient_store,
    rewards_in,
    run_one,
    running,
)
from leyden.core.testing.scripted_gateway import ScriptedGateway, scripted_gateway
from leyden.core.testing.servers.store_server import TOKEN, StoreServer

PATIENCE = 20.0
LOOK = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), sys.stdin.read()]))"
BODY = '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
HEADERS = "-H 'content-type: application/json' -H 'x-leyden-agent: solver'"
ASK = f"curl -s $OPENAI_BASE_URL/chat/completions {HEADERS} -d '{BODY}'"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


def python(code: str, *arguments: str) -> CommandAgent:
    return CommandAgent([sys.executable, "-c", code.replace("{", "{{").replace("}", "}}"), *arguments])


def shell(script: str) -> CommandAgent:
    return CommandAgent(["sh", "-c", script.replace("{", "{{").replace("}", "}}")])


async def result_of(agent: CommandAgent, task: Task = "task") -> Any:
    """What `agent` returned, as its reward function is given it."""
    results: list[Any] = []

    def keep(task: Task, result: Any) -> float:
        results.append(result)
        return 1.0

    ended, _ = await run_one(agent, task, reward=keep)
    assert ended.status == "succeeded", error_of(ended)
    return results[0]


def one(task: Task, result: Any) -> float:
    return 1.0


async def appears(path: Path) -> str:
    """The content of a file, once it has a whole line."""
    async with asyncio.timeout(PATIENCE):
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.02)
    return path.read_text().strip()


def lives(process: int) -> bool:
    """Whether there is such a process; one that has ended and is not yet waited for is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # not there, or gone while it was read
        return False


async def gone(processes: list[int]) -> None:
    async with asyncio.timeout(PATIENCE):
        while any(map(lives, processes)):
            await asyncio.sleep(0.02)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


# --- What a command is told


async def test_a_command_is_told_of_its_attempt_as_any_client_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_out = ("AZURE_OPENAI_API_KEY", "CLAUDE_CODE_USE_VERTEX", "GEMINI_API_KEY", "OPENAI_API_TYPE", "Groq_Api_Key")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", *kept_out):
        monkeypatch.setenv(name, "sk-secret")
    monkeypatch.setenv("MY_SEARCH_PLACE", "the agent's own")
    monkeypatch.setenv("NO_PROXY", "example.org")
    task = {"question": "2+2?", "n": 7}
    arguments, variables, read = json.loads(await result_of(python(LOOK, "-q", "{question}", "n={n}"), task))
    assert arguments == ["-q", "2+2?", "n=7"]
    assert json.loads(read) == json.loads(variables["LEYDEN_TASK"]) == task
    token = variables["OPENAI_API_KEY"]
    assert verify(TEST_KEY, token) == (variables["LEYDEN_ROLLOUT_ID"], variables["LEYDEN_ATTEMPT_ID"])
    assert variables["OPENAI_BASE_URL"] == variables["OPENAI_API_BASE"] == f"{NO_GATEWAY}/a/{token}/v1"
    assert variables["ANTHROPIC_BASE_URL"] == f"{NO_GATEWAY}/a/{token}"
    assert variables["ANTHROPIC_API_KEY"] == variables["ANTHROPIC_AUTH_TOKEN"] == token
    assert variables["MY_SEARCH_PLACE"] == "the agent's own"
    assert variables["NO_PROXY"] == "example.org,127.0.0.1"
    assert not set(kept_out) & set(variables)
    assert "sk-secret" not in variables.values()


SECRETS = {
    "LEYDEN_RUN_TOKEN": "opens the run",
    "OPENAI_KEY": "sk",
    "LITELLM_API_KEY": "sk",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_ACCESS_KEY_ID": "s",
    "GITHUB_TOKEN": "ghp",
    "DB_PWD": "p",
    "DATABASE_URL": "postgres://me:password@host/db",
    "GROQ_API_KEY": "gsk",
}
PLAIN = {
    "PWD": "/home",
    "SSH_AUTH_SOCK": "/run/ssh",
    "HTTPS_PROXY": "http://me:password@proxy:3128",
    "SITE": "https://host/a:b@c",
    "TOKENIZERS_PARALLELISM": "false",
    "MAX_TOKENS": "7",
}


def test_a_command_gets_no_secrets_but_those_that_are_named() -> None:
    attempt, base = factories.attempt(NO_GATEWAY), {**SECRETS, **PLAIN}
    variables = environment("task", attempt, base)
    assert not SECRETS.keys() & variables.keys()
    assert variables.items() >= PLAIN.items()
    named = ["GITHUB_TOKEN", "GROQ_API_KEY", "DATABASE_URL", "NOT_SET", "NO_PROXY"]
    variables = environment("task", attempt, {**base, "NO_PROXY": "a"}, named)
    assert SECRETS.keys() & variables.keys() == {"GITHUB_TOKEN", "GROQ_API_KEY", "DATABASE_URL"}
    assert variables["NO_PROXY"] == "a,127.0.0.1"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["A=secret-value"], "not 'A' with a value: set the variable, and give only its name"),
        (["a b"], "the name of an environment variable, not 'a b'"),
        (["LEYDEN_RUN_TOKEN"], "a command cannot get Leyden's own tokens"),
        (["OPENAI_API_KEY"], "Leyden sets OPENAI_API_KEY for the command"),
        ("GITHUB_TOKEN", "a list of variable names"),
    ],
)
def test_what_a_command_cannot_be_given_is_said(names: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        CommandAgent(["echo"], env=names)
    assert "secret-value" not in str(raised.value)


async def test_a_command_that_fails_for_want_of_a_variable_is_told_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "found")
    script = 'test -n "$SEARCH_API_KEY" || { echo "set SEARCH_API_KEY" >&2; exit 1; }; echo $SEARCH_API_KEY'
    ended, _ = await run_one(shell(script), reward=one)
    advice = "(commands do not get variables with secrets: to pass them, give --env SEARCH_API_KEY)"
    assert error_of(ended)["message"] == f"sh ended with exit code 1: set SEARCH_API_KEY {advice}"
    assert await result_of(CommandAgent(shell(script).arguments, ["SEARCH_API_KEY"])) == "found"


def test_a_long_task_is_on_the_standard_input_only() -> None:
    attempt = factories.attempt(NO_GATEWAY)
    inherited = {"LEYDEN_TASK": "of a rollout around this one"}
    assert "LEYDEN_TASK" not in environment("x" * 200_000, attempt, inherited)
    assert environment("x", attempt, inherited)["LEYDEN_TASK"] == '"x"'


async def test_a_command_need_not_read_its_task() -> None:
    assert await result_of(CommandAgent(["echo", "done"]), "x" * 300_000) == "done"


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("{q}", "how?"),
        ("--q={q} {n}", "--q=how? 7"),
        ("{list}|{none}|{flag}", '[1,{"a":"b"}]|null|true'),
        ("{{q}} {{{q}}}", "{q} {how?}"),
        ("{a key}", "spaced"),
        ("$q %q plain", "$q %q plain"),
        ("{tricky}", "{q}"),
    ],
)
def test_placeholders_are_the_tasks_keys(argument: str, filled: str) -> None:
    task = {
        "q": "how?",
        "n": 7,
        "list": [1, {"a": "b"}],
        "none": None,
        "flag": True,
        "a key": "spaced",
        "tricky": "{q}",
    }
    assert CommandAgent(["echo", argument]).filled(task) == ["echo", filled]


@pytest.mark.parametrize(
    ("argument", "task", "says"),
    [
        ("{colour}", {"q": 1, "n": 2}, "the task has the keys q, n; .* needs the key 'colour'"),
        ("{q}", "a text", "the task has no keys"),
        ("{}", {"q": 1}, "needs a key"),
        ("a } b", {"q": 1}, "write {{ or }} for a brace"),
        ('{"json": 1}', {"q": 1}, "the task has the keys q"),
    ],
)
def test_a_placeholder_without_a_value_is_one_line(argument: str, task: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says) as caught:
        CommandAgent(["echo", argument]).filled(task)
    assert "\n" not in str(caught.value)


async def test_a_task_that_does_not_fit_is_the_users_to_mend() -> None:
    ended, _ = await run_one(CommandAgent(["echo", "{colour}"]), {"q": 1})
    assert (ended.status, error_of(ended)["kind"]) == ("failed", "input")


# --- What becomes of it


def test_a_command_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the command is empty"):
        CommandAgent([])
    with pytest.raises(AgentNotFound, match="'no-such-program'"):
        AgentSource.load(("no-such-program", "x"))
    (tmp_path / "not-executable").write_text("echo hi")
    with pytest.raises(AgentNotFound, match="not-executable"):
        CommandAgent([str(tmp_path / "not-executable")])


@pytest.mark.parametrize("arguments", [["{program}"], ["echo", "{null}"], ["echo", "{long}"]])
async def test_what_cannot_be_started_is_the_users_to_mend(tmp_path: Path, arguments: list[str]) -> None:
    program = tmp_path / "program"
    program.write_text("\x00neither script nor binary")
    program.chmod(0o755)
    task = {"program": str(program), "null": "a\0b", "long": "x" * 3_000_000}
    ended, _ = await run_one(CommandAgent(arguments), task)
    error = error_of(ended)
    assert (ended.status, error["kind"], error["type"]) == ("failed", "input", "AgentNotFound")
    assert "cannot be started: " in error["message"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo first >&2; echo 'no such city' >&2; exit 3", "sh ended with exit code 3: no such city"),
        ("printf 'no newline' >&2; exit 255", "sh ended with exit code 255: no newline"),
        ("exit 1", "sh ended with exit code 1"),
        ("kill -SEGV $$", "sh was killed by SIGSEGV"),
    ],
)
async def test_a_command_that_ends_badly_fails_its_attempt(script: str, says: str) -> None:
    ended, spans = await run_one(shell(script), reward=one)
    assert ended.status == "failed"
    assert error_of(ended) == {"kind": "agent", "type": "CommandFailed", "message": says}
    assert not rewards_in(spans)


async def test_what_it_prints_is_its_result_and_its_errors_go_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    ended, spans = await run_one(shell("echo '  an answer '; echo; echo to the log >&2"))
    assert [span.attributes[semconv.RESULT] for span in spans] == ["an answer"]
    assert capsys.readouterr() == ("", f"{ended.rollout_id}: to the log\n")


async def test_too_much_output_is_cut_and_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "OUTPUT_BYTES", 10_000)
    monkeypatch.setattr(command, "ERROR_BYTES", 1000)
    script = "yes line | head -c 200000; echo the answer; yes complaint | head -c 200000 >&2"
    result = await result_of(shell(script))
    assert len(result) <= 10_000
    assert result.endswith("line\nthe answer")
    errors = capsys.readouterr().err
    assert "further output is left out" in errors
    assert "the first 190011 bytes of its output are not in its result" in errors
    assert len(errors) < 10_000


async def test_bytes_that_are_no_text_are_no_failure() -> None:
    assert await result_of(shell(r"printf '\377\376 ok'")) == "\ufffd\ufffd ok"


# --- Nothing is left behind

FAMILY = """
trap '' TERM
(trap '' TERM; echo $$ > /dev/null; sleep 600) &
setsid sleep 600 &
echo $$ $! $(cut -d ' ' -f 4 /proc/$$/stat) > "$PIDS.tmp"; mv "$PIDS.tmp" "$PIDS"
wait
"""
"""Ignores SIGTERM, has a child in the background and one in a session of its own; tells their ids."""


@needs_proc
async def test_a_timeout_ends_the_whole_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    store = patient_store()
    config = RolloutConfig(timeout_seconds=5.0)
    rollout = await store.enqueue_rollout("task", config=config)
    async with running(store, shell(FAMILY)):
        family = [int(n) for n in (await appears(tmp_path / "pids")).split()]
        assert all(map(lives, family))
        (ended,) = await finished(store, [rollout.rollout_id])
        await gone(family)
    assert (ended.attempt.status, error_of(ended)["kind"]) == ("timeout", "timeout")


@needs_proc
async def test_a_stopped_runner_ends_its_commands_and_puts_the_rollout_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    store = MemoryStore()
    rollout = await store.enqueue_rollout("task")
    async with running(store, shell("echo $$ $PPID > $PIDS; exec sleep 600"), cancel_seconds=PATIENCE):
        family = [int(n) for n in (await appears(tmp_path / "pids")).split()]
    assert not any(map(lives, family))
    current = await store.get_rollout_by_id(rollout.rollout_id)
    assert current is not None
    assert current.status == "requeuing"


@needs_proc
async def test_what_a_command_leaves_in_the_background_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWAY", str(tmp_path / "away"))
    script = "sleep 600 & echo $!; setsid sh -c 'echo $$ > $AWAY; exec sleep 600' &\n"
    script += "while [ ! -s $AWAY ]; do sleep 0.02; done; cat $AWAY"
    family = [int(n) for n in (await result_of(shell(script))).split()]
    assert len(family) == 2
    assert not any(map(lives, family))


@needs_proc
async def test_a_killed_worker_takes_its_command_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    store = MemoryStore()
    config = RolloutConfig(max_attempts=2, retry_condition=("unresponsive",))
    rollout = await store.enqueue_rollout("task", config=config)
    script = f'if [ -e "$PIDS" ]; then echo survived; exit 0; fi\n{FAMILY}'
    with StoreServer() as server:
        spec = WorkerSpec(
            agent=shell(script).arguments,
            store_url=server.add(store),
            store_token=TOKEN,
            gateway_url=NO_GATEWAY,
            key=TEST_KEY.hex(),
            log_file=str(tmp_path / "worker.log"),
        )
        pool = WorkerPool(spec)
        await pool.start()
        try:
            shell_id, *others = [int(n) for n in (await appears(tmp_path / "pids")).split()]
            supervisor = parent_of(shell_id)
            os.kill(parent_of(supervisor), signal.SIGKILL)
            await gone([shell_id, supervisor, *others])
            (ended,) = await finished(store, [rollout.rollout_id])
        finally:
            await pool.stop()
    attempts = await store.query_attempts(rollout.rollout_id)
    assert [attempt.status for attempt in attempts] == ["unresponsive", "succeeded"]
    assert ended.status == "succeeded"


# --- Its model calls


def answers(gateway: ScriptedGateway, agent: CommandAgent, **changes: Any) -> Any:
    return running(gateway.store, agent, gateway_url=gateway.url, key=gateway.key, **changes)


@needs_curl
async def test_calls_are_recorded_for_their_own_attempt_at_whatever_concurrency() -> None:
    async with scripted_gateway(lambda request: gateway.codec.answer("hi")) as gateway:
        tasks = [{"n": n} for n in range(6)]
        ids = [(await gateway.store.enqueue_rollout(task)).rollout_id for task in tasks]
        agent = CommandAgent(["sh", "-c", ASK.replace("{", "{{").replace("}", "}}").replace("hello", "number {n}")])
        async with answers(gateway, agent):
            ended = await finished(gateway.store, ids)
        for rollout in ended:
            spans = (await gateway.store.query_spans(rollout.rollout_id)).items
            (call,) = [span for span in spans if semconv.CALL_ID in span.attributes]
            assert f"number {rollout.input['n']}" in str(call.attributes[semconv.INPUT_MESSAGES])
            assert call.attempt_id == rollout.attempt.attempt_id
            assert call.attributes[semconv.AGENT_NAME] == "solver"
            (result,) = [span for span in spans if span.name == semconv.RESULT]
            assert json.loads(str(result.attributes[semconv.RESULT]))["choices"][0]["message"]["content"] == "hi"
        assert len(gateway.engine.log) == len(tasks)


@needs_curl
async def test_a_call_after_the_attempts_end_is_refused_in_openais_error_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    script = f"{ASK} > $HERE/first; echo > $HERE/asked\nwhile [ ! -e $HERE/go ]; do sleep 0.02; done\n"
    script += f"{ASK} -w '\\n%{{http_code}}\\n' > $HERE/second.tmp; mv $HERE/second.tmp $HERE/second; sleep 600"
    async with scripted_gateway(lambda request: gateway.codec.answer("hi")) as gateway:
        rollout = await gateway.store.enqueue_rollout("task")
        async with answers(gateway, shell(script)):
            await appears(tmp_path / "asked")
            await gateway.store.update_rollout(rollout.rollout_id, status="cancelled")
            (tmp_path / "go").touch()
            body, code = (await appears(tmp_path / "second")).splitlines()
        assert "choices" in json.loads((tmp_path / "first").read_text())
        assert code == "403"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "attempt_closed"
        assert "cancelled" in error["message"]
        assert len(gateway.engine.log) == 1
