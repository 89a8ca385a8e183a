"""Remote workers: runs workers on this machine for a run on another machine, for as long as that run lasts."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from leyden.core.data.encoding.base_url import is_loopback
from leyden.core.data.isolation import Isolation
from leyden.core.errors import LeydenError, UsageError
from leyden.core.runner.user_code.agent_spec import agent_fields
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.runner.workers.autoscaling import follow, share
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.trainer.agents.placement import check_workers
from leyden.core.trainer.agents.run_proof import PROOF, PROTOCOL, ProofExchange, read_challenge, same
from leyden.core.trainer.agents.runner_api import (
    HOLD_SECONDS,
    OFFER,
    PATH,
    TOKEN,
    WORKERS,
    Offer,
    SessionStatus,
    WorkerCounts,
    status_item,
)

T = TypeVar("T")
PAUSE_SECONDS = 1.0
MOST_ANSWERED = 4 << 20
"""Maximum size of an answer in bytes, from any server. An offer has a few thousand bytes."""
OUTDATED = (
    "{server} requests the run's token itself (runner protocol 1), which leyden run no longer sends: update "
    f"leyden-core on the run's machine to {version('leyden-core')} (protocol {PROTOCOL}) or later"
)


class NoServer(LeydenError):
    """Raised when no server answers at the address of a run, or of a server of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkersPlan:
    """Workers to run for a run on another machine. A field that is None uses the run's setting.

    Agent, reward, input and hooks that the run names are code or commands from another machine. They are executed only
    with `trust_server`.
    """

    server: str
    """Root URL of the run."""
    token: str = field(repr=False)
    workers: int = 1
    max_workers: int | None = None
    """Largest number of workers: between the two, the number follows the load of the run. None: it does not change."""
    agent: AgentReference | None = None
    reward: str | None = None
    reward_weights: dict[str, float] | None = None
    input: str | None = None
    hooks: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    concurrency: int | None = None
    isolation: Isolation | None = None
    patience: float = 600.0
    """Maximum time in seconds to wait for a run that does not answer, because it may be resumed."""
    trust_server: bool = False
    """Whether code and commands that the run names may be executed on this machine."""
    drain: float = 0.0
    """Maximum time in seconds for which rollouts that run may end once this process is requested to stop."""
    insecure: bool = False
    """Whether tokens and model calls may be sent unencrypted to another machine."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot work."""
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--server must be the URL of a run, such as http://10.0.0.5:8765, not {self.server!r}")
        if self.workers < 1 or (self.concurrency is not None and self.concurrency < 1):
            raise UsageError("workers and concurrency must be at least 1")
        check_workers(self.workers, self.max_workers)
        if parts.scheme == "http" and not self.insecure and not is_loopback(parts.hostname):
            raise UsageError(
                f"--server {self.server} would send tokens and model calls unencrypted to another machine: give an "
                "https:// URL, or --insecure on a private network"
            )
        if self.agent is None and not self.trust_server:
            raise UsageError(
                "name the agent to run here, as file.py:agent or -- COMMAND, or give --trust-server to run the agent "
                "that the server names"
            )

    def spec(self, offer: Offer) -> WorkerSpec:
        """Return the specification of each worker.

        Raises UsageError if neither the run nor this plan names an agent, or if the run names code that is not trusted.
        """
        self._check_trust(offer)
        agent = self.agent or offer.agent
        if agent is None:
            raise UsageError(f"run {offer.run} names no agent: give one, as file.py:agent")
        if isinstance(agent, str) and agent.startswith("<"):
            raise UsageError(f"the agent of run {offer.run} is a live object there, {agent}: give it as file.py:agent")
        server = self.server.rstrip("/")
        own = {name: value for name, value in agent_fields(self).items() if value}
        return WorkerSpec(
            **(agent_fields(offer) | own),
            store_url=f"{server}/store",
            store_token=offer.store_token,
            gateway_url=server,
            routes=offer.routes,
            python_path=tuple(filter(None, sys.path)),
        )

    def _check_trust(self, offer: Offer) -> None:
        """Raise UsageError if the run names code or secrets that this plan neither sets nor trusts."""
        if self.trust_server:
            return
        code = "code to run here"
        for option, given, named, what in (
            ("--reward", self.reward, offer.reward, code),
            ("--input", self.input, offer.input, code),
            ("--hook", self.hooks, " ".join(offer.hooks), code),
            ("--env", self.env, " ".join(offer.env), "secrets of this machine for the command"),
        ):
            if named and not given:
                raise UsageError(
                    f"run {offer.run} names {option} {named}, which is {what}: give {option} yourself, or "
                    "--trust-server to use what the server names"
                )


async def work_for(plan: RemoteWorkersPlan, on_message: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Run workers until the run has ended or `stopped` is set; `on_message` receives a line for each event.

    Raises UsageError for a token or an agent that does not fit the run, or for a server that is not the run. Raises
    LeydenError when no worker can be kept alive. Raises NoAnswer when the run has not answered for `plan.patience`
    seconds.
    """
    timeout = aiohttp.ClientTimeout(total=HOLD_SECONDS + 20.0, sock_connect=5.0)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        run = _Run(session, plan)
        goes_on = True
        while goes_on and not stopped.is_set():
            offer = await _first(run.offer(), stopped)
            if offer is None:
                return
            pool = WorkerPool(plan.spec(offer), plan.workers, most=plan.max_workers)
            await pool.start()
            on_message(f"{_described(plan)} run {plan.agent or offer.agent} for {offer.run} at {plan.server}")
            try:
                goes_on = await _first(_while_it_lasts(run, offer, pool), stopped) or False
                if stopped.is_set() and plan.drain:
                    await _drain(pool, plan.drain, on_message)
            finally:
                await pool.stop()
            if stopped.is_set():
                return
            on_message(f"{offer.run} was resumed" if goes_on else f"{offer.run} has no more work")


def _described(plan: RemoteWorkersPlan) -> str:
    most = "" if plan.max_workers is None else f" to {plan.max_workers}"
    return f"{plan.workers}{most} workers"


async def _drain(pool: WorkerPool, seconds: float, on_message: Callable[[str], None]) -> None:
    """Wait until the rollouts that run have ended, at most for `seconds`."""
    on_message(f"no further rollout is claimed; rollouts that run have {seconds:g} s to end")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(pool.drained(), seconds)


async def _while_it_lasts(run: "_Run", offer: Offer, pool: WorkerPool) -> bool:
    """Wait for the end of a session; return whether another session follows."""

    async def watch_workers() -> None:
        while True:
            await pool.check()
            await asyncio.sleep(PAUSE_SECONDS)

    async def wanted(size: int) -> int:
        """Return the share of this machine in the workers that the run wants, within the machine's own bounds."""
        counts = await run.workers()
        return min(max(share(counts.wanted, counts.present, size), run.plan.workers), run.plan.max_workers or size)

    session_end = asyncio.create_task(run.is_followed(offer.session))
    watching = [asyncio.create_task(watch_workers())]
    if run.plan.max_workers is not None:
        watching.append(asyncio.create_task(follow(pool, wanted)))
    try:
        done, _ = await asyncio.wait({session_end, *watching}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task is not session_end:
                task.result()
        return session_end.result()
    finally:
        for task in (session_end, *watching):
            task.cancel()
        await asyncio.gather(session_end, *watching, return_exceptions=True)


async def _first(work: Coroutine[Any, Any, T], stopped: asyncio.Event) -> T | None:
    """Return the result of `work`; None when `stopped` is set first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


class _Run:
    """Client of the run's runner endpoint."""

    def __init__(self, session: aiohttp.ClientSession, plan: RemoteWorkersPlan) -> None:
        self._session, self.plan = session, plan
        self._url = plan.server.rstrip("/") + PATH

    async def offer(self) -> Offer:
        """Return the offer: what the run needs from runners."""
        return msgspec.json.decode(await self._get("offer", OFFER), type=Offer)

    async def workers(self) -> WorkerCounts:
        """Return how many workers the run has and wants on all machines."""
        return msgspec.json.decode(await self._get("workers", WORKERS), type=WorkerCounts)

    async def is_followed(self, session_id: str) -> bool:
        """Wait until a session is over; return whether another one resumes the run."""
        while True:
            body = await self._get("standing", status_item(session_id), sitting=session_id)
            status = msgspec.json.decode(body, type=SessionStatus)
            if status.session != session_id:
                return True
            if status.ended:
                return False
            await asyncio.sleep(PAUSE_SECONDS)  # a run that stops answers at once, and later not at all

    async def _get(self, path: str, item: str, **query: str) -> bytes:
        """Return an answer for which the run has proved that it has the token."""
        give_up = time.monotonic() + self.plan.patience
        while True:
            try:
                status, headers, _ = await self._send(path, query, {})
                if status == 200:
                    raise self._not_the_run("it answers without requesting a proof")
                challenge = read_challenge(headers.get("www-authenticate", "")) if status == 401 else None
                if challenge is not None:
                    exchange = ProofExchange(item, challenge[0])
                    proof = {"authorization": exchange.authorization(self.plan.token)}
                    status, headers, body = await self._send(path, query, proof)
                    if status == 200:
                        if not same(headers.get(PROOF, ""), exchange.answer_proof(self.plan.token, body)):
                            raise self._not_the_run("its answer has no proof that it knows the token")
                        return body
                    new_challenge = read_challenge(headers.get("www-authenticate", ""))
                    if new_challenge is None or not new_challenge[1]:
                        self._refuse(status, path)
                elif status == 401:
                    raise UsageError(OUTDATED.format(server=self.plan.server))
                else:
                    self._refuse(status, path)
                problem = f"status {status}"
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            if time.monotonic() > give_up:
                raise NoServer(
                    f"{self.plan.server} has not answered for {self.plan.patience:.0f} s: {problem}; is the run "
                    "running, and does it listen on --host 0.0.0.0?"
                )
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(
        self, path: str, query: dict[str, str], headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{self._url}/{path}"
        headers = {**headers, "accept-encoding": "identity"}  # an unproved server could send compressed gigabytes
        async with self._session.get(url, params=query, headers=headers, allow_redirects=False) as answer:
            body = b""
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > MOST_ANSWERED:
                    raise self._not_the_run(f"its answer has more than {MOST_ANSWERED} bytes")
            return answer.status, answer.headers, body

    def _not_the_run(self, why: str) -> UsageError:
        return UsageError(
            f"{self.plan.server} does not prove that it is the run: {why}; its answers are ignored. It is another "
            f"server, or a run with another {TOKEN}"
        )

    def _refuse(self, status: int, path: str) -> None:
        if status in (401, 403):
            raise UsageError(f"{self.plan.server} does not accept the token in {TOKEN}: set the token of the run")
        if status in (404, 405) and path == "workers":
            raise UsageError(
                f"{self.plan.server} does not report how many workers it needs: leave out --max-workers, or update "
                f"leyden-core on the run's machine to {version('leyden-core')} or later"
            )
        if status in (404, 405):
            raise UsageError(f"{self.plan.server} is not a run of `leyden train`: it has no {PATH}")
