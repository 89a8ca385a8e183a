import asyncio
import logging
import subprocess
import types
from collections.abc import Iterator

import httpx
import pytest

from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing import factories
from leyden.core.testing.running import NO_GATEWAY, run_one
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.wire import routing, unsupported_clients

MODULE = types.ModuleType("any")


def loaded(*names: str) -> dict[str, types.ModuleType]:
    return dict.fromkeys(names, MODULE)


@pytest.fixture
def silent() -> Iterator[None]:
    """As in a process that has said nothing yet."""
    unsupported_clients._warned = False  # pyright: ignore[reportPrivateUsage]
    yield
    unsupported_clients._warned = False  # pyright: ignore[reportPrivateUsage]


def test_a_process_that_uses_routed_libraries_only_has_nothing_out_of_reach() -> None:
    assert unsupported_clients.out_of_reach(loaded("httpx", "requests", "urllib3", "aiohttp", "http.client")) == []


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("httpx", "grpc"), "gRPC"),
        (("httpx", "botocore", "urllib3"), "botocore"),
        (("httpx", "websockets"), "WebSockets"),
        (("httpx", "google.genai"), "google.genai"),
        (("httpx", "cohere"), "cohere"),
    ],
)
def test_what_is_loaded_is_named(names: tuple[str, ...], word: str) -> None:
    [reason] = unsupported_clients.out_of_reach(loaded(*names))
    assert word in reason


def test_an_attempt_whose_model_call_passed_by_is_not_silent(silent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unsupported_clients.UNREACHED, "pytest", "pytest is loaded")
    attempt = factories.attempt(NO_GATEWAY)
    routing.install()
    try:
        with open_attempt(attempt), httpx.Client() as client:
            with pytest.raises(httpx.ConnectError):
                client.post("https://api.provider.invalid/v1/embeddings", json={})
            assert "pytest is loaded" in unsupported_clients.possible_reasons(attempt)
            with pytest.raises(httpx.ConnectError):
                client.post("https://api.provider.invalid/v1/chat/completions", json={})
            assert unsupported_clients.possible_reasons(attempt) == []
    finally:
        routing.uninstall()


async def test_a_rollout_without_a_model_call_is_explained_once(
    silent: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(unsupported_clients.UNREACHED, "pytest", "pytest is loaded")

    def agent(_: object) -> str:
        return "done"

    with caplog.at_level(logging.WARNING, "leyden.routing"):
        for _ in range(2):
            rollout, _spans = await run_one(agent)
            assert rollout.status == "succeeded"
    [record] = [record for record in caplog.records if record.name == "leyden.routing"]
    assert "without a model call" in record.getMessage()
    assert "pytest is loaded" in record.getMessage()


async def test_of_a_command_nothing_is_said_but_that_it_did_not_call(
    silent: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the worker's own process has loaded says nothing of it."""
    monkeypatch.setitem(unsupported_clients.UNREACHED, "pytest", "pytest is loaded")
    with caplog.at_level(logging.WARNING, "leyden.routing"):
        await run_one(CommandAgent(["true"]))
    [record] = [record for record in caplog.records if record.name == "leyden.routing"]
    assert "true sent no model call to OPENAI_BASE_URL" in record.getMessage()
    assert "pytest" not in record.getMessage()


async def test_other_programs_that_an_agent_started_are_named(silent: None, caplog: pytest.LogCaptureFixture) -> None:
    async def agent(_: object) -> str:
        return await asyncio.to_thread(subprocess.check_output, ["/usr/bin/env"], text=True)

    context_propagation.install()
    routing.install(fail_closed=True)
    try:
        with caplog.at_level(logging.WARNING, "leyden.routing"):
            await run_one(agent)
    finally:
        routing.uninstall()
        context_propagation.uninstall()
    assert "env is another program: its client must read its base URL from OPENAI_BASE_URL" in caplog.text


def test_what_a_client_asks_its_system_with_is_no_reason(silent: None) -> None:
    attempt = factories.attempt(extra={unsupported_clients.PROGRAMS: {"uname", "my_agent"}})
    said = unsupported_clients.possible_reasons(attempt)
    program = (
        "my_agent is another program: its client must read its base URL from OPENAI_BASE_URL or ANTHROPIC_BASE_URL"
    )
    assert program in said
    assert not any("uname" in one for one in said)
