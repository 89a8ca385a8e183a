"""Workers that accept from one socket have as many connections each."""

import asyncio
import socket
from pathlib import Path

import pytest

from leyden.core.gateway.http.server import listen
from leyden.core.gateway.shared.listener import SharedListener, forget_connections

pytestmark = pytest.mark.integration


async def accept(listener: SharedListener, accepted: list[socket.socket]) -> None:
    while True:
        accepted.append(await listener.accept())
        listener.count(1)


async def test_connections_are_spread_evenly(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as listening:
        listeners = [SharedListener(listening.dup(), tmp_path, name) for name in ("worker-1", "worker-2")]
        accepted: list[list[socket.socket]] = [[], []]
        accepting = [asyncio.create_task(accept(*pair)) for pair in zip(listeners, accepted, strict=True)]
        clients: list[socket.socket] = []
        for n in range(1, 41):
            clients.append(socket.create_connection(listening.getsockname()))
            while sum(map(len, accepted)) < n:
                await asyncio.sleep(0.001)
        assert [len(sockets) for sockets in accepted] == [20, 20]
        accepting[0].cancel()  # it has died
        await asyncio.wait([accepting[0]])
        forget_connections(tmp_path, "worker-1")
        clients += [socket.create_connection(listening.getsockname()) for _ in range(5)]
        while len(accepted[1]) < 25:
            await asyncio.sleep(0.001)
        accepting[1].cancel()
        await asyncio.wait(accepting)
        for each in (*clients, *accepted[0], *accepted[1], *(listener.socket for listener in listeners)):
            each.close()
        for listener in listeners:
            listener.close()
            listener.count(-1)
