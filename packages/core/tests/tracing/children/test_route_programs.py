"""Programs that an agent starts, as real processes: their model calls reach the gateway, and no provider."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing import context_propagation
from leyden.core.tracing.children import environment
from leyden.core.tracing.children.environment import HOOK
from leyden.core.tracing.children.inherited import ENVIRONMENT
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, outside_attempt, set_caller
from leyden.core.tracing.wire import routing
from leyden.core.tracing.wire.unsupported_clients import PROGRAMS

PATH = "/v1/chat/completions"
KEY = "sk-the-providers"
BODY = '{"model": "big", "messages": []}'
CHILD = f"""
import sys, threading

library, provider = sys.argv[1:]
url, body, headers = provider + "/v1/chat/completions", b'{BODY}', {{"authorization": "Bearer {KEY}"}}


def call():
    if library == "urllib":
        import urllib.request

        urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
    elif library == "httpx":
        import httpx

        assert httpx.post(url, content=body, headers=headers).status_code == 200
    elif library == "aiohttp":
        import aiohttp, asyncio

        async def post():
            async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
                assert answer.status == 200

        asyncio.run(post())


thread = threading.Thread(target=call)
thread.start()
thread.join()
"""
PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(autouse=True)
def routed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    context_propagation.install()
    routing.install(fail_closed=True)
    yield
    routing.uninstall()
    context_propagation.uninstall()


@pytest.fixture
def child(tmp_path: Path) -> Path:
    """A Python program that calls a model of a provider, with the provider's key, in a thread of its own."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return script


def attempt_at(gateway: Endpoint, **more: Any) -> OpenAttempt:
    return factories.attempt(gateway.url, **more)


def by_run(words: list[str]) -> None:
    subprocess.run(words, check=True)


def by_run_with_little_environment(words: list[str]) -> None:
    subprocess.run(words, check=True, env={"PATH": os.environ["PATH"]})


def by_shell(words: list[str]) -> None:
    subprocess.run(" ".join(words), check=True, shell=True)


def by_system(words: list[str]) -> None:
    assert os.system(" ".join(words)) == 0  # pyright: ignore[reportDeprecated]  # agents use it still


def by_posix_spawn(words: list[str]) -> None:
    assert os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)[1] == 0


def by_spawnv(words: list[str]) -> None:
    assert os.spawnv(os.P_WAIT, words[0], words) == 0  # pyright: ignore[reportDeprecated]  # the same


def by_asyncio(words: list[str]) -> None:
    async def run() -> None:
        assert await (await asyncio.create_subprocess_exec(*words)).wait() == 0

    asyncio.run(run())


def by_uvloop(words: list[str]) -> None:
    async def run() -> None:
        assert await (await asyncio.create_subprocess_exec(*words)).wait() == 0
        assert await (await asyncio.create_subprocess_shell(" ".join(words), env={**os.environ})).wait() == 0

    uvloop.run(run())


WAYS = [
    by_run,
    by_run_with_little_environment,
    by_shell,
    by_system,
    by_posix_spawn,
    by_spawnv,
    by_asyncio,
    by_uvloop,
]


@pytest.mark.parametrize("start", WAYS)
def test_a_python_programs_calls_are_routed_however_it_is_started(
    start: Callable[[list[str]], None], child: Path, gateway: Endpoint, provider: Endpoint
) -> None:
    with open_attempt(attempt_at(gateway)):
        set_caller(Caller(agent="solver", trace_id="cd" * 16, span_id="12" * 8))
        start([sys.executable, str(child), "urllib", provider.url])
    assert not provider.seen
    assert gateway.seen
    for call in gateway.seen:
        ours = {name: value for name, value in call["headers"].items() if name.startswith(semconv.HEADER_PREFIX)}
        assert ours == {
            semconv.HEADER_ATTEMPT: "t",
            semconv.HEADER_AGENT: "solver",
            semconv.HEADER_TRACE: "cd" * 16,
            semconv.HEADER_SPAN: "12" * 8,
        }
        assert (call["path"], call["body"].decode()) == (PATH, BODY)
        assert KEY not in str(call)


@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
def test_whatever_library_it_calls_with(library: str, child: Path, gateway: Endpoint, provider: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        by_run([sys.executable, str(child), library, provider.url])
    assert (len(gateway.seen), len(provider.seen)) == (1, 0)


def test_what_a_child_starts_is_routed_too(child: Path, gateway: Endpoint, provider: Endpoint) -> None:
    words = [sys.executable, str(child), "urllib", provider.url]
    for code in (
        f"import os; os.system({' '.join(words)!r})",
        f"import subprocess; subprocess.run({words!r}, env={{}})",
    ):
        with open_attempt(attempt_at(gateway)):
            by_run([sys.executable, "-c", code])
    assert (len(gateway.seen), len(provider.seen)) == (2, 0)


def test_a_child_without_an_attempt_calls_nobody(child: Path, gateway: Endpoint, provider: Endpoint) -> None:
    """As one that is started by a thread that lost its attempt; its parent is a runner's process."""
    done = subprocess.run(
        [sys.executable, str(child), "urllib", provider.url], capture_output=True, text=True, check=False
    )
    assert "model call stopped by Leyden: no attempt is open" in done.stderr
    assert not provider.seen
    assert not gateway.seen


def test_what_a_reward_starts_goes_where_it_always_went(child: Path, gateway: Endpoint, provider: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)), outside_attempt():
        by_run([sys.executable, str(child), "urllib", provider.url])
        environment = json.loads(subprocess.check_output([sys.executable, "-c", PRINT]))
    assert (len(gateway.seen), len(provider.seen)) == (0, 1)
    assert provider.seen[0]["headers"]["authorization"] == f"Bearer {KEY}"
    assert environment["OPENAI_API_KEY"] == KEY
    assert ENVIRONMENT not in environment


def test_another_program_finds_the_gateway_by_its_environment_and_gets_no_key(
    gateway: Endpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_warned", set[tuple[str, str]]())
    monkeypatch.setenv("NO_PROXY", "example.org")
    attempt = attempt_at(gateway)
    with caplog.at_level(logging.WARNING, "leyden.routing"), open_attempt(attempt):
        for words in (["/usr/bin/env"], [sys.executable, "-I", "-c", "import os; os.execv('/usr/bin/env', ['env'])"]):
            lines = subprocess.check_output(words, text=True).splitlines()
            found = dict(line.split("=", 1) for line in lines if "=" in line)
            assert found["OPENAI_BASE_URL"] == found["OPENAI_API_BASE"] == f"{gateway.url}/a/t/v1"
            assert found["OPENAI_API_KEY"] == found["ANTHROPIC_API_KEY"] == "t"
            assert found["ANTHROPIC_BASE_URL"] == f"{gateway.url}/a/t"
            assert "ANTHROPIC_AUTH_TOKEN" not in found
            assert found["NO_PROXY"] == "example.org,127.0.0.1"
            assert KEY not in found.values()
    assert attempt.extra[PROGRAMS] == {"env", os.path.basename(sys.executable)}
    assert next(record.getMessage() for record in caplog.records) == (
        "env is started without GROQ_API_KEY, because it is another program whose model calls could reach a provider"
    )


def test_python_of_this_environment_keeps_its_keys_for_its_clients_to_be_made_with(gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        environment = json.loads(subprocess.check_output([sys.executable, "-c", PRINT]))
    assert (environment["OPENAI_API_KEY"], environment["ANTHROPIC_API_KEY"]) == (KEY, KEY)
    assert "OPENAI_BASE_URL" not in environment


def test_production_capture_leaves_other_programs_as_they_are(
    child: Path, gateway: Endpoint, provider: Endpoint
) -> None:
    routing.install(fail_closed=False)
    down = factories.attempt("http://127.0.0.1:9", fail_open=True)
    for attempt, received in ((attempt_at(gateway, fail_open=True), (1, 0)), (down, (1, 1))):
        with open_attempt(attempt):
            by_shell([sys.executable, str(child), "urllib", provider.url])
            lines = subprocess.check_output(["/usr/bin/env"], text=True)
        assert (len(gateway.seen), len(provider.seen)) == received
        assert f"OPENAI_API_KEY={KEY}" in lines
        assert "OPENAI_BASE_URL" not in lines
    assert provider.seen[0]["headers"]["authorization"] == f"Bearer {KEY}"


def test_a_process_with_nothing_open_starts_programs_as_ever() -> None:
    routing.install(fail_closed=False)
    environment = json.loads(subprocess.check_output([sys.executable, "-c", PRINT]))
    assert environment.items() >= {"OPENAI_API_KEY": KEY}.items()
    assert not {ENVIRONMENT, "PYTHONPATH"} & set(environment)


def test_a_child_that_calls_no_model_loads_nothing_of_leyden(gateway: Endpoint) -> None:
    code = "import sys, json, threading; print([name for name in sys.modules if 'leyden' in name])"
    with open_attempt(attempt_at(gateway)):
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize(
    "first", ["asyncio", "http.client", "subprocess", "urllib.request", "concurrent.futures.process"]
)
def test_a_program_may_import_first_what_it_likes(
    first: str, child: Path, gateway: Endpoint, provider: Endpoint
) -> None:
    child.write_text(f"import {first}\n{CHILD}")
    with open_attempt(attempt_at(gateway)):
        by_run([sys.executable, str(child), "urllib", provider.url])
    assert [call["path"] for call in gateway.seen] == [PATH]
    assert provider.seen == []


def test_a_sitecustomize_of_the_users_own_still_runs_and_the_module_path_stays(
    tmp_path: Path, gateway: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import http.client\nWHOSE = 'mine'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = "import sys, http.client, sitecustomize; print(sitecustomize.WHOSE, sys.path[1], http.client.__spec__.name)"
    with open_attempt(attempt_at(gateway)):
        said = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert said == ["mine", str(tmp_path), "http.client"]
    assert HOOK not in said


def test_what_is_emitted_in_a_child_is_said_to_be_lost(gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        done = subprocess.run(
            [sys.executable, "-c", "import leyden.core as agl; agl.emit_message('hi')"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "1 notes (leyden.message) were emitted in a child process of the agent and are not recorded" in done.stderr


def test_arguments_that_are_wrong_are_the_callers_own_error(gateway: Endpoint) -> None:
    wrong: Any = subprocess.Popen
    with open_attempt(attempt_at(gateway)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
            wrong(["true"], wrong=1)
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            subprocess.run(["no-such-program"], check=False)


def test_uninstall_undoes_install_exactly() -> None:
    routing.uninstall()
    functions = {name: getattr(os, name) for name in ("posix_spawn", "posix_spawnp", "execv", "execve", "system")}
    before = subprocess.Popen.__init__
    routing.install()
    assert subprocess.Popen.__init__ is not before
    assert os.posix_spawn is not functions["posix_spawn"]
    routing.uninstall()
    assert subprocess.Popen.__init__ is before
    assert {name: getattr(os, name) for name in functions} == functions
