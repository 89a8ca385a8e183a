"""`Desk`: where runners of other machines learn what a run wants of them, and that it has ended.

It answers only those who have the run's token, which lives as long as the run; what opens the store is new in every
sitting, so that nobody works for a sitting that he has not asked about. Knows nothing of processes.
"""

import asyncio
import contextlib
import hmac
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from leyden.core.data.isolation import Isolation
from leyden.core.data.route import Route as CallRoute
from leyden.core.runner.loading import AgentReference
from leyden.core.trainer.runners import Runners

if TYPE_CHECKING:
    from leyden.core.trainer.config import RunConfig

PATH = "/runners"
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
        known = os.environ.get(TOKEN, "").encode()

        def allowed(request: Request) -> bool:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            return bool(known) and scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), known)

        async def offer(request: Request) -> Response:
            return _json(self._offer(machine_token())) if allowed(request) else Response(status_code=401)

        async def standing(request: Request) -> Response:
            if not allowed(request):
                return Response(status_code=401)
            if request.query_params.get("sitting") == self._sitting:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), HOLD_SECONDS)
            return _json(Standing(self._sitting, self._ended))

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


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
