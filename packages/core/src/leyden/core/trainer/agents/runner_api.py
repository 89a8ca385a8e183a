"""Runner endpoint: gives runners on other machines what a run needs of them, and reports when the run has ended.

It answers only requests with a proof of the run's token (see `run_proof`). The run's token is valid for the whole run.
The token for the store is new in each session, so that a runner works only for a session whose offer it has read.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from leyden.core.data.route import Route as CallRoute
from leyden.core.runner.user_code.agent_spec import AgentSpec, agent_fields
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.store.base import LightningStore
from leyden.core.store.http.worker_presence import WorkerPresence
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.agents.run_proof import (
    PROOF,
    PROTOCOL,
    NonceIssuer,
    ProofExchange,
    challenge,
    read_proof,
    same,
)
from leyden.core.trainer.agents.worker_demand import WorkerDemand

if TYPE_CHECKING:
    from leyden.core.trainer.config import RunConfig

logger = logging.getLogger(__name__)

PATH = "/runners"
OFFER = "offer"
"""Item name of the offer in proofs."""
WORKERS = "workers"
"""Item name of the number of workers in proofs."""
WORKERS_PATH = "/workers"
OUTDATED = (
    f"this run accepts proofs of its token (runner protocol {PROTOCOL}), not the token itself (protocol 1): update "
    f"leyden-core on the machine of leyden run to {version('leyden-core')}, as this run has it, or later"
)
TOKEN = "LEYDEN_RUN_TOKEN"
"""Environment variable with the run's token, here and on the machine of `leyden run`. If unset, all requests are
refused."""
SERVED = "LEYDEN_SERVED_RUN"
"""Environment variable with the name of a run that a server of runs trains."""
HOLD_SECONDS = 10.0
"""Maximum time in seconds for which a request for the session's end is held open."""


class Offer(AgentSpec, frozen=True, kw_only=True):
    """What a runner needs besides the run's URL and token."""

    session: str = msgspec.field(name="sitting")
    """Id of the session. It changes when the run is resumed, together with the tokens."""
    run: str
    agent: AgentReference | None = None
    """None: the run names no agent."""
    store_token: str
    """Token of one machine, from which it derives a token for each of its workers."""
    routes: tuple[CallRoute, ...] = ()


class SessionStatus(msgspec.Struct, frozen=True):
    """Current session, and whether the run has ended."""

    session: str = msgspec.field(name="sitting")
    ended: bool


class WorkerCounts(msgspec.Struct, frozen=True):
    """The workers of a run on all machines together."""

    wanted: int
    """Number of workers that the run wants, given its load."""
    present: int
    """Number of workers that claim its rollouts."""


class RunnerEndpoint:
    """Runner endpoint of one session of a run."""

    def __init__(self, config: "RunConfig") -> None:
        self.placement: RunnerPlacement = config.runners
        self._config = config
        self._session_id = secrets.token_hex(8)
        self._ended, self._closed = False, asyncio.Event()

    def close(self, *, ended: bool) -> None:
        """Answer held and later requests, while the server still answers: `ended` states whether the run has ended.

        A run that failed or was stopped has not ended, because it may be resumed.
        """
        self._ended = ended
        self._closed.set()

    def demand(self, store: LightningStore, presence: WorkerPresence) -> WorkerDemand:
        """Return the demand of the run, whose rollouts are in `store`, and whose workers send heartbeats."""
        return WorkerDemand(self._config, store, presence)

    def app(self, machine_token: Callable[[], str], demand: WorkerDemand) -> ASGIApp:
        """Return the ASGI application to mount at `PATH`; it issues a token of its own to each machine."""
        proof_check = _ProofCheck(os.environ.get(TOKEN, ""))

        async def offer(request: Request) -> Response:
            exchange = proof_check.exchange(request, OFFER)
            if isinstance(exchange, Response):
                return exchange
            return proof_check.answer(exchange, self._offer(machine_token()))

        async def status(request: Request) -> Response:
            session_id = request.query_params.get("sitting", "")
            exchange = proof_check.exchange(request, status_item(session_id))
            if isinstance(exchange, Response):
                return exchange
            if session_id == self._session_id:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), HOLD_SECONDS)
            return proof_check.answer(exchange, SessionStatus(self._session_id, self._ended))

        async def workers(request: Request) -> Response:
            exchange = proof_check.exchange(request, WORKERS)
            if isinstance(exchange, Response):
                return exchange
            return proof_check.answer(exchange, WorkerCounts(demand.wanted, demand.present))

        return Router([Route("/offer", offer), Route("/standing", status), Route(WORKERS_PATH, workers)])

    def _offer(self, store_token: str) -> Offer:
        return Offer(
            **agent_fields(self._config),
            session=self._session_id,
            run=self._config.name,
            store_token=store_token,
            routes=self._config.routes,
        )


class _ProofCheck:
    """Authentication: accepts only requests with a proof of the run's token; without a token it accepts none."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._nonces = NonceIssuer()
        self._has_warned = False

    def exchange(self, request: Request, item: str) -> ProofExchange | Response:
        """Return the exchange of a request, or the response that refuses it."""
        header = request.headers.get("authorization", "")
        given = read_proof(header, item)
        if given is None:
            if header[:7].lower() == "bearer ":
                self._warn()
                return self._refusal(OUTDATED)
            return self._refusal("prove that you have the run's token")
        exchange, proof = given
        if not self._token or not same(proof, exchange.proof(self._token)):
            return self._refusal("this is not the run's token")
        if not self._nonces.use(exchange.server_nonce):
            return self._refusal("this nonce is no longer valid", stale=True)
        return exchange

    def answer(self, exchange: ProofExchange, answer: msgspec.Struct) -> Response:
        """Return a response with the proof that it is the run's."""
        body = msgspec.json.encode(answer)
        return Response(body, headers={PROOF: exchange.answer_proof(self._token, body)}, media_type="application/json")

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "refused a runner that sends the run's token itself, as an older leyden run does: update leyden-core "
                "on its machine, and choose a new %s if others can read the network",
                TOKEN,
            )

    def _refusal(self, text: str, *, stale: bool = False) -> Response:
        headers = {"www-authenticate": challenge(self._nonces.fresh(), stale=stale)}
        return PlainTextResponse(text, 401, headers)


def status_item(session_id: str) -> str:
    """Return the item name of a session's state in proofs."""
    return f"standing {session_id}"
