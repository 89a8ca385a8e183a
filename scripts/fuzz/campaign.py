"""A campaign: many broken requests at a gateway in its own process, and what became of it, its records and its logs."""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzz.corpus import KEY_MARK
from fuzz.mutations import Request, request
from fuzz.wire import Answer, Connection, fault
from leyden.core.data import semconv
from leyden.core.store.open import open_store

CONCURRENCY = 16
CALLS_PER_ATTEMPT = 40
"""As many as a long agent makes: a gateway remembers the conversations of a bounded number of attempts."""
WARM_UP = 0.4
"""Part of a campaign before memory is looked at."""
PATIENCE_SECONDS = 60.0
SHOWN = 20


@dataclass(slots=True)
class Findings:
    """What a campaign found."""

    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[int] = field(default_factory=Counter[int])
    faults: list[str] = field(default_factory=list[str])
    """Answers that are not as they should be, each with the number of its request."""
    accepted: set[str] = field(default_factory=set[str])
    """Ids of the answers that were given."""
    unrecorded: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Requests sent, and the server's resident bytes then."""
    leaks: list[str] = field(default_factory=list[str])
    """Which secret was found where."""
    tracebacks: int = 0

    @property
    def growth(self) -> float:
        """Resident bytes that a request adds after the warm-up: the slope of a line through them."""
        points = [(n, size) for n, size in self.memory if n >= WARM_UP * self.requests]
        if len(points) < 3:
            return 0.0
        middle = sum(n for n, _ in points) / len(points)
        spread = sum((n - middle) ** 2 for n, _ in points)
        return sum((n - middle) * size for n, size in points) / spread if spread else 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong, memory aside: how much of it is noise, only a long campaign can tell."""
        return not (self.faults or self.unrecorded or self.leaks or self.tracebacks)

    def report(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "requests": self.requests,
            "kinds": dict(self.kinds.most_common()),
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
            "faults": self.faults,
            "accepted": len(self.accepted),
            "unrecorded": self.unrecorded,
            "resident_bytes": self.memory,
            "growth_bytes_per_request": self.growth,
            "leaks": self.leaks,
            "tracebacks": self.tracebacks,
        }


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway that runs in a process of its own."""

    url: str
    tokens: list[str]
    pid: int
    store: Path
    log: Path


@contextlib.asynccontextmanager
async def served(folder: Path, attempts: int) -> AsyncGenerator[Served]:
    """Run a gateway with so many open attempts, until the block ends; its store and its log are in `folder`."""
    store, log = folder / "store.db", folder / "server.log"
    script = str(Path(__file__).with_name("served.py"))
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            str(store),
            "--attempts",
            str(attempts),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=1 << 26,
        )
        assert process.stdout is not None and process.stdin is not None
        try:
            line = await process.stdout.readline()
            if not line:
                raise RuntimeError(f"the gateway did not start; {log} says why")
            said = json.loads(line)
            yield Served(said["url"], said["tokens"], process.pid, store, log)
        finally:
            process.stdin.close()
            await process.wait()


async def campaign(folder: Path, requests: int, seed: int, told: Callable[[int], None] = lambda sent: None) -> Findings:
    """Send `requests` broken requests, and look at what is left; `told` hears how many were sent."""
    found = Findings(requests=requests)
    numbers = iter(range(requests))
    async with served(folder, -(-requests // CALLS_PER_ATTEMPT)) as gateway:
        await asyncio.gather(*(_send(gateway, seed, numbers, found, told) for _ in range(CONCURRENCY)))
    await _look(gateway, found)
    return found


async def _send(
    gateway: Served, seed: int, numbers: Iterator[int], found: Findings, told: Callable[[int], None]
) -> None:
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    connection = Connection(host, int(port), PATIENCE_SECONDS)
    every = max(found.requests // 200, 1)
    for number in numbers:
        asked, headers = _in_the_name_of(gateway.tokens[number // CALLS_PER_ATTEMPT], number, request(seed, number))
        found.kinds[asked.kind] += 1
        try:
            answer = await connection.ask(asked, headers)
        except TimeoutError:
            found.faults.append(f"request {number} ({asked.kind}) got no answer in {PATIENCE_SECONDS:g} seconds")
            await connection.close()
            continue
        _judge(number, asked, answer, found)
        if number % every == 0:
            found.memory.append((number, resident_bytes(gateway.pid)))
            told(number + 1)
    await connection.close()


def _in_the_name_of(token: str, number: int, asked: Request) -> tuple[Request, list[tuple[bytes, bytes]]]:
    """Return a request as an attempt makes it, by its path or by the private header."""
    if number % 3 == 0 and asked.path.startswith("/v1/"):
        return replace(asked, path=f"/a/{token}{asked.path}"), []
    return asked, [(semconv.HEADER_ATTEMPT.encode(), token.encode())]


def _judge(number: int, asked: Request, answer: Answer, found: Findings) -> None:
    found.statuses[answer.status] += 1
    wrong = fault(asked, answer)
    if wrong is not None:
        found.faults.append(f"request {number} ({asked.kind}): {wrong}")
    elif (given := answer.response_id) is not None:
        found.accepted.add(given)


async def _look(gateway: Served, found: Findings) -> None:
    """Compare the records with the answers, and search what is left behind for secrets."""
    recorded: set[str] = set()
    store = await open_store(f"sqlite:///{gateway.store}")
    try:
        for rollout in await store.query_rollouts():
            for span in (await store.query_spans(rollout.rollout_id)).items:
                recorded.add(str(span.attributes.get(semconv.RESPONSE_ID)))
    finally:
        await store.close()
    found.unrecorded = len(found.accepted - recorded)
    log = gateway.log.read_bytes()
    found.tracebacks = log.count(b"Traceback (most recent call last)")
    secrets = {"the provider's key": KEY_MARK, **{f"token {n}": token for n, token in enumerate(gateway.tokens)}}
    kept = b"".join(path.read_bytes() for path in sorted(gateway.store.parent.glob("store.db*")))
    for place, content in (("the log", log), ("the store", kept)):
        found.leaks += [f"{name} in {place}" for name, secret in secrets.items() if secret.encode() in content][:SHOWN]


def resident_bytes(pid: int) -> int:
    """Return the memory of a process; 0 where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS")), 0)
