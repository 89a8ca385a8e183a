"""Attacks by a web page in a browser on the same machine, whose own name was made to lead to a server of ours."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.cli.main import run
from leyden.core.errors import UsageError
from leyden.core.gateway.http.host_check import MOST_SEEN, HostCheck
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_gateway import scripted_gateway
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.services.store import StorePlan, serve_store

LOCAL = ["localhost", "LOCALHOST:80", "localhost.", "127.0.0.1:8765", "127.9.9.9", "[::1]:8765", "[::1]"]
FOREIGN = ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", "xlocalhost", ""]
ADDRESSES = ["10.0.0.5:8765", "[fd00::1]:8765", "0.0.0.0"]
CONTAINERS = ["host.docker.internal:8765", "host.containers.internal"]


async def _answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(check: HostCheck, *hosts: str) -> int:
    """The status that a request with these Host headers gets."""
    found: list[int] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        found.extend([message["status"]] if "status" in message else [])

    async def receive() -> dict[str, Any]:
        raise AssertionError("no body is read")

    headers = [(b"accept", b"*/*"), *((b"host", host.encode()) for host in hosts)]
    await check({"type": "http", "headers": headers}, receive, send)
    return found[0]


async def test_a_server_of_the_loopback_answers_for_the_loopback_alone() -> None:
    """The page's name leads to 127.0.0.1, and the browser sends it."""
    for bound in ("127.0.0.1", "::1", "localhost"):
        check = HostCheck(_answers, bound)
        for _ in range(2):
            assert [host for host in [*LOCAL, *CONTAINERS] if await status(check, host) != 204] == []
            assert [host for host in [*FOREIGN, *ADDRESSES] if await status(check, host) != 421] == []


async def test_a_server_of_a_network_answers_for_addresses_and_names_that_it_was_given() -> None:
    """The page's name leads to an address of a private network."""
    check = HostCheck(_answers, "0.0.0.0", ("box.lan", "Train"))
    known = [*LOCAL, *ADDRESSES, *CONTAINERS, "box.lan:8765", "BOX.LAN", "train"]
    assert [host for host in known if await status(check, host) != 204] == []
    assert [host for host in FOREIGN if await status(check, host) != 421] == []


async def test_a_second_header_does_not_hide_the_first() -> None:
    """A request names this machine, and the page's name besides."""
    check = HostCheck(_answers, "127.0.0.1")
    assert await status(check, "localhost", "evil.example") == 421
    assert await status(check, "evil.example", "localhost") == 421
    assert await status(check) == 204  # no browser leaves it out


async def test_headers_do_not_fill_the_memory() -> None:
    """A client sends another port, or another address, with every request."""
    check = HostCheck(_answers, "0.0.0.0")
    for n in range(2 * MOST_SEEN):
        assert await status(check, f"10.0.0.1:{n}") == 204
    assert len(check._accepted_headers) == MOST_SEEN  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
async def served() -> AsyncGenerator[list[str]]:
    """The root URLs of a gateway and of a store's server."""
    stopped, url = asyncio.Event(), asyncio.Queue[str]()
    plan = StorePlan(uri="memory://", token="t", allow_hosts=("box.lan",))
    serving = asyncio.create_task(serve_store(plan, url.put_nowait, stopped))
    async with scripted_gateway(lambda request: ByteCodec().answer("hi")) as gateway:
        yield [gateway.url, await url.get()]
    stopped.set()
    await serving


async def test_no_route_of_a_server_answers_a_page(served: list[str]) -> None:
    """The page asks for what needs no token, and for what is not there."""
    async with aiohttp.ClientSession() as session:
        for url in served:
            for path in ("/metrics", "/openapi.json", "/health", "/nowhere"):
                async with session.get(url + path, headers={"host": "evil.example"}) as answer:
                    assert answer.status == 421
                    assert "--allow-host" in (await answer.json())["error"]["message"]
        async with session.get(served[1] + "/openapi.json", headers={"host": "box.lan:80"}) as answer:
            assert answer.status == 200
        async with session.post(served[0] + "/v1/x", headers={"host": "evil.example"}, data=b"x" * 100_000) as answer:
            assert answer.status == 421


def test_a_run_answers_for_the_name_that_it_advertises() -> None:
    """Runners of other machines call the run by it."""
    runners = RunnerPlacement(host="0.0.0.0", advertise="https://train.example:443", allow_hosts=("box",))
    assert set(runners.known_hosts) == {"train.example", "box"}


@pytest.mark.parametrize("name", ["http://box", "box:80", "a/b", "a b", "*.lan", "u@box", "a" * 254])
@pytest.mark.parametrize("command", [["store"], ["gateway", "--endpoint", "http://127.0.0.1:9/v1"]])
def test_what_is_no_host_is_refused_in_one_line(
    command: list[str], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names that no Host header could hold would never be answered for."""
    assert run([*command, "--allow-host", name]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "--allow-host takes a host's name or address" in said
    with pytest.raises(UsageError, match="--allow-host"):
        RunnerPlacement(allow_hosts=(name,))
