"""`Desk`: where runners of other machines learn what a run wants of them, and that it has ended.

It answers only those who prove that they have the run's token (see `run_proof`), which lives as long as the run; what
opens the store is new in every sitting, so that nobody works for a sitting that he has not asked about. Knows nothing
of processes.
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

from leyden.core.data.isolation import Isolation
from leyden.core.data.route import Route as CallRoute
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.trainer.agents.placement import Runners
from leyden.core.trainer.agents.run_proof import PROOF, PROTOCOL, Challenges, Exchange, challenge, read_proof, same

if TYPE_CHECKING:
    from leyden.core.trainer.config import RunConfig

logger = logging.getLogger(__name__)

PATH = "/runners"
OFFER = "offer"
"""What is asked for, as proofs have it."""
OUTDATED = (
    f"this run takes proofs of its token (runner protocol {PROTOCOL}) and not the token itself (protocol 1): "
    f"update leyden-core where leyden run is, to the {version('leyden-core')} of this run or later"
)
TOKEN = "LEYDEN_RUN_TOKEN"
"""Environment variable, here and where `leyden run` is: the run's token. Where it is not set, the desk is closed."""
HOLD_SECONDS = 10.0
"""How long a question for the end may be held."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner needs besides the run's URL and token."""

    sitting: str
    """Another one after the run was gone on with: its keys are others too."""
    run: str
    store_token: str
    """A machine's, of which it makes one for each of its workers."""
    routes: tuple[CallRoute, ...] = ()
    agent: AgentReference | None = None
    reward: str | None = None
    reward_weights: dict[str, float] | None = None
    input: str | None = None
    hooks: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    concurrency: int = 64
    isolation: Isolation = "auto"


class Standing(msgspec.Struct, frozen=True):
    """Which sitting it is, and whether it has come to its end."""

    sitting: str
    ended: bool


class Desk:
    """Answers for one sitting of a run."""

    def __init__(self, config: "RunConfig") -> None:
        self.runners: Runners = config.runners
        self._config = config
        self._sitting = secrets.token_hex(8)
        self._ended, self._closed = False, asyncio.Event()

    def close(self, *, ended: bool) -> None:
        """Tell whoever asks, now and while the server still answers, whether the run has come to its end.

        A run that failed or was stopped has not: it may be gone on with.
        """
        self._ended = ended
        self._closed.set()

    def app(self, machine_token: Callable[[], str]) -> ASGIApp:
        """The application, to be mounted at `PATH`; it gives each machine that asks a token of its own."""
        door = _Door(os.environ.get(TOKEN, ""))

        async def offer(request: Request) -> Response:
            exchange = door.exchange(request, OFFER)
            if isinstance(exchange, Response):
                return exchange
            return door.answer(exchange, self._offer(machine_token()))

        async def standing(request: Request) -> Response:
            sitting = request.query_params.get("sitting", "")
            exchange = door.exchange(request, standing_of(sitting))
            if isinstance(exchange, Response):
                return exchange
            if sitting == self._sitting:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), HOLD_SECONDS)
            return door.answer(exchange, Standing(self._sitting, self._ended))

        return Router([Route("/offer", offer), Route("/standing", standing)])

    def _offer(self, store_token: str) -> Offer:
        config = self._config
        return Offer(
            sitting=self._sitting,
            run=config.name,
            store_token=store_token,
            routes=config.routes,
            agent=config.agent,
            reward=config.reward,
            reward_weights=config.reward_weights or None,
            input=config.input,
            hooks=config.hooks,
            env=config.env,
            concurrency=config.concurrency,
            isolation=config.isolation,
        )


class _Door:
    """Answers those alone who prove that they have the run's token; without one, nobody."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._challenges = Challenges()
        self._has_warned = False

    def exchange(self, request: Request, asked: str) -> Exchange | Response:
        """The exchange that a request is part of, or what refuses it."""
        header = request.headers.get("authorization", "")
        given = read_proof(header, asked)
        if given is None:
            if header[:7].lower() == "bearer ":
                self._warn()
                return self._refused(OUTDATED)
            return self._refused("prove that you have the run's token")
        exchange, proof = given
        if not self._token or not same(proof, exchange.proof(self._token)):
            return self._refused("this is not the run's token")
        if not self._challenges.use(exchange.server_nonce):
            return self._refused("this nonce is not taken any more", stale=True)
        return exchange

    def answer(self, exchange: Exchange, answer: msgspec.Struct) -> Response:
        """An answer, with the proof that it is the run's."""
        body = msgspec.json.encode(answer)
        return Response(body, headers={PROOF: exchange.answer_proof(self._token, body)}, media_type="application/json")

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a runner was refused that sends the run's token itself, as an older leyden run does: update "
                "leyden-core there, and make a new %s if others can read the network",
                TOKEN,
            )

    def _refused(self, line: str, *, stale: bool = False) -> Response:
        headers = {"www-authenticate": challenge(self._challenges.fresh(), stale=stale)}
        return PlainTextResponse(line, 401, headers)


def standing_of(sitting: str) -> str:
    """What is asked for with a sitting, as proofs have it."""
    return f"standing {sitting}"
