import json
import logging

import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.data.identity import mint
from leyden.core.gateway.server import GatewayServer
from leyden.core.gateway.upstream import Upstream
from leyden.core.masking import MaskingFilter, mask_json, mask_text

TOKEN = mint(b"k" * 32, "rollout", "attempt")  # the same in every process, as it names tests


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"GET /a/{TOKEN}/v1/models failed", "GET /a/***/v1/models failed"),
        (f"http://127.0.0.1:80/a/{TOKEN}", "http://127.0.0.1:80/a/***"),
        (f"authorization: Bearer {TOKEN}", "authorization: Bearer ***"),
        ("Incorrect API key provided: sk-proj-0123456789abcdef.", "Incorrect API key provided: sk-***."),
        ("postgresql://me:pass@host/db", "postgresql://***@host/db"),
        ("cannot reach http://t0k3n@host:80/x", "cannot reach http://***@host:80/x"),
        ("https://host/v1/chat/completions at 10:30", "https://host/v1/chat/completions at 10:30"),
        ("a task of /a/user, skateboarding_competitions", "a task of /a/user, skateboarding_competitions"),
    ],
)
def test_secrets_are_masked_in_text_and_nothing_else(text: str, masked: str) -> None:
    assert mask_text(text) == masked


def test_secrets_are_masked_in_json_by_the_name_of_their_field() -> None:
    server = {"type": "mcp", "authorization": "t0k", "headers": {"X-Mine": "t0k"}, "server_url": "https://host"}
    masked = json.loads(mask_json(json.dumps({"api_key": "t0k", "user": "me", "tools": [server], "cookies": ["t0k"]})))
    assert masked == {
        "api_key": "***",
        "user": "me",
        "tools": [{**server, "authorization": "***", "headers": {"X-Mine": "***"}}],
        "cookies": ["***"],
    }


def test_a_tool_that_takes_a_password_stays_as_it_is() -> None:
    parameters = {
        "type": "object",
        "properties": {"password": {"type": "string"}, "headers": {"type": "object"}, "n": {"type": "integer"}},
        "required": ["password"],
    }
    tools = json.dumps([{"type": "function", "function": {"name": "log_in", "parameters": parameters}}])
    assert json.loads(mask_json(tools)) == json.loads(tools)


def test_what_holds_no_secret_is_not_touched() -> None:
    text = '{"temperature": 0.50, "stop":["a"]}'
    assert mask_json(text) is text


def test_a_masked_logger_tells_no_secret_even_in_an_error(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("leyden.test.masked")
    logger.addFilter(MaskingFilter())
    try:
        raise OSError(f"cannot reach https://me:pass@host/a/{TOKEN}/v1")
    except OSError:
        logger.exception("call with %s failed, 100%% of them", f"Bearer {TOKEN}")
    assert TOKEN not in caplog.text
    assert "pass@" not in caplog.text
    assert "call with Bearer *** failed, 100% of them" in caplog.text
    assert "OSError: cannot reach https://***@host/a/***/v1" in caplog.text


@pytest.mark.integration
async def test_a_running_gateway_masks_its_own_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer nothing: nobody asks."""

    servers = [GatewayServer(nothing) for _ in range(2)]
    for server in servers:
        await server.start()
    logger = logging.getLogger("leyden.gateway")
    logger.error("could not reach %s", "http://user:word@host/v1")
    for server in servers:
        await server.stop()
    assert "word" not in caplog.text
    assert sum(isinstance(known, MaskingFilter) for known in logger.filters) == 1


def test_an_upstream_shows_no_password() -> None:
    assert "word" not in repr(Upstream("https://user:word@host/v1", None, "m"))
