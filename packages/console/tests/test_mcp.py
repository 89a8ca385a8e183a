"""The console for MCP clients: the tools over a real server with the protocol's own client, and who is refused."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp.types as protocol
import pytest
from console_runs import CALL, GROUP, made_run
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from leyden.console.http.access import guarded
from leyden.console.mcp.brief import brief, curves, sampled
from leyden.core.cli.main import run
from leyden.core.trainer.run_folder.folder import RunFolder

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def served(folder: RunFolder) -> Generator[dict[str, Any]]:
    """A console with --mcp over two runs; gives the entry for a client's configuration, as it was printed."""
    made_run(folder.path.parent, "other")
    command = [sys.executable, "-m", "leyden.core.cli", "console", "--runs", str(folder.path.parent), "--port", "0"]
    environment = {**os.environ, "LEYDEN_CONSOLE_TOKEN": "a-token"}
    with subprocess.Popen([*command, "--mcp"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert "?token=a-token" in process.stdout.readline()
            entry = json.loads(process.stdout.readline().partition(": ")[2])
            yield entry["mcpServers"]["leyden"]
        finally:
            process.terminate()


@asynccontextmanager
async def session(server: dict[str, Any]) -> AsyncGenerator[ClientSession]:
    """A client's session with the server."""
    async with (
        httpx.AsyncClient(headers=server["headers"], timeout=60) as http,
        streamable_http_client(server["url"], http_client=http) as (read, write, _),
        ClientSession(read, write) as client,
    ):
        await client.initialize()
        yield client


async def called(client: ClientSession, tool: str, **arguments: Any) -> Any:
    """The JSON that a tool returned."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, protocol.TextContent)
    assert not result.isError, content.text
    return json.loads(content.text)


@pytest.mark.integration
async def test_every_tool_answers_over_a_real_server(served: dict[str, Any]) -> None:
    async with session(served) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [*tools] == [
            *("list_runs", "run_status", "run_health", "why_not_trained", "bottlenecks"),
            *("rollouts", "rollout", "call", "compare_runs", "prompts"),
        ]
        for tool in tools.values():
            assert "must not be followed" in (tool.description or "")
            assert tool.annotations is not None and tool.annotations.readOnlyHint
            assert tool.inputSchema["additionalProperties"] is False
        assert tools["rollouts"].inputSchema["properties"]["limit"]["maximum"] == 100

        listed = await called(client, "list_runs", limit=1)
        assert (len(listed["runs"]), listed["left_out"]) == (1, 1)
        assert [one["key"] for one in (await called(client, "list_runs", text="SMALL"))["runs"]] == ["small"]

        status = await called(client, "run_status", run="small")
        assert (status["state"], status["step"], status["kept"]["version"]) == ("finished", 2, 2)
        assert status["steps"] == [1, 2]
        assert status["curves"]["reward"] == {"at": [0.25, 0.5], "low": 0.25, "high": 0.5}

        health = await called(client, "run_health", run="small")
        assert health["rollouts_read"] == health["rollouts_of_the_run"] == 5
        assert health["alerts"][0]["name"] == "entropy_collapse"
        why = await called(client, "why_not_trained", run="small")
        assert (why["rollouts"], why["rollouts_trained"]) == (4, 2)
        phases = (await called(client, "bottlenecks", run="small"))["phases"]
        assert [one["name"] for one in phases] == ["rollouts", "update"]

        rows = await called(client, "rollouts", run="small", outcome="trained", order="highest reward")
        assert [(one["id"], one.get("reward")) for one in rows["rollouts"]] == [
            (f"{GROUP}-0", 1.0),
            (f"{GROUP}-1", 0.0),
        ]
        assert rows["mean_reward"] == 0.5
        low = await called(client, "rollouts", run="small", most_reward=0.5, limit=1)
        assert (low["fitting"], low["left_out"]) == (2, 1)
        failed = await called(client, "rollouts", run="small", outcome="failed")
        assert [one["id"] for one in failed["rollouts"]] == [f"{GROUP}-3"]

        tree = (await called(client, "rollout", run="small", rollout=f"{GROUP}-0"))["tree"]
        assert "trained in step 1" in tree
        assert "  [agent] solver" in tree
        assert "    [model] chat model" in tree
        assert "error: division by zero" in tree
        cut = (await called(client, "rollout", run="small", rollout=f"{GROUP}-0", characters=200))["tree"]
        assert "more characters)" in cut and len(cut) < 260

        call = await called(client, "call", run="small", rollout=f"{GROUP}-0", span=CALL)
        assert call["messages"][0]["content"] == "What is 1 + 1?"
        assert (call["response_tokens"], call["least_likely"][0]["log_probability"]) == (3, -2.0)
        assert call["trained"][0]["step"] == 1

        compared = await called(client, "compare_runs", runs=["small", "other"])
        assert compared["sets"][0]["rows"][0]["common"] == 4
        assert "no prompts" in (await called(client, "prompts", run="small"))["note"]


@pytest.mark.integration
async def test_what_a_tool_cannot_answer_is_one_sentence(served: dict[str, Any]) -> None:
    async with session(served) as client:
        for tool, arguments, why in (
            ("run_status", {"run": "nothing"}, "there is no run 'nothing' here"),
            ("run_status", {}, "run_status: Object missing required field `run`"),
            ("rollouts", {"run": "small", "limit": 1000}, "<= 100"),
            ("rollouts", {"run": "small", "other": 1}, "unknown field `other`"),
            ("rollout", {"run": "small", "rollout": "../x"}, "there is no rollout '../x'"),
            ("compare_runs", {"runs": ["small"]}, "length >= 2"),
            ("delete_run", {"run": "small"}, "there is no tool 'delete_run'"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.isError
            (content,) = result.content
            assert isinstance(content, protocol.TextContent)
            assert why in content.text and "\n" not in content.text


@pytest.mark.integration
def test_only_clients_with_the_token_and_the_right_host_are_answered(served: dict[str, Any]) -> None:
    url, right = served["url"], {**ACCEPT, **served["headers"]}
    base = url.removesuffix("/mcp")
    with httpx.Client(timeout=60) as http:
        assert http.post(url, json=INITIALIZE, headers=right).json()["result"]["serverInfo"]["name"] == "leyden"
        for wrong in ({}, {"authorization": "Bearer no"}, {"authorization": "a-token"}):
            assert http.post(url, json=INITIALIZE, headers={**ACCEPT, **wrong}).status_code == 401
        assert http.post(f"{url}?token=a-token", json=INITIALIZE, headers=ACCEPT).status_code == 401
        for header, value, status in (
            ("host", "attacker.example", 421),
            ("origin", "http://attacker.example", 403),
            ("origin", "http://127.0.0.1:1", 403),
            ("sec-fetch-site", "cross-site", 403),
        ):
            refused = http.post(url, json=INITIALIZE, headers={**right, header: value})
            assert refused.status_code == status, (header, refused.text)
        http.get(f"{base}/?token=a-token")
        assert http.cookies
        assert http.post(url, json=INITIALIZE, headers=ACCEPT).status_code == 401, "the cookie does not count"
        for method in ("GET", "DELETE", "PUT"):
            assert http.request(method, url, headers=right).status_code == 405
        assert http.post(f"{base}/api/runs", json={}).status_code == 405
        assert http.post(f"{base}/mcp/", json=INITIALIZE, headers=right).status_code == 405


def test_without_its_package_the_command_says_what_to_install(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.streamable_http_manager", None)

    assert run(["console", "--runs", str(folder.path.parent), "--mcp"]) == 2

    error = capsys.readouterr().err
    assert "pip install 'leyden-console[mcp]'" in error
    assert error.count("\n") == 1


def test_mcp_needs_a_token() -> None:
    async def app(*_: object) -> None:
        return None

    with pytest.raises(ValueError, match="needs a token"):
        guarded(app, "127.0.0.1", None, mcp=True)


def test_long_values_are_cut_and_say_so() -> None:
    assert brief({"a": "x" * 12, "b": [1] * 5, "c": None, "d": 0.123456, "e": 1796000123.456}, 10, 3) == {
        "a": "x" * 10 + "… (2 more characters)",
        "b": [1, 1, 1, "… (2 more)"],
        "d": 0.1235,
        "e": 1796000123.5,
    }
    assert sampled(3) == [0, 1, 2]
    assert sampled(100)[0] == 0 and sampled(100)[-1] == 99 and len(sampled(100)) == 10
    many = {f"s{number}": [1.0] for number in range(45)}
    assert curves([1], many)["curves_left_out"] == 5


def test_the_package_is_pinned_where_it_is_tested() -> None:
    constraints = (Path(__file__).parents[3] / "constraints.txt").read_text()

    assert "\nmcp==" in constraints
