import html
import json
import logging
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.data.identity import mint
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.masking import MaskingFilter, known, mask_json, mask_text, mask_values, remember_secret, visible
from leyden.core.store.http.access import Access, worker_token

ACCESS = Access("opens-the-store-7")
MACHINE = ACCESS.machine_token("node-")
TOKEN = mint(b"k" * 32, "rollout", "attempt")  # the same in every process, as it names tests


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"GET /a/{TOKEN}/v1/models failed", "GET /a/***/v1/models failed"),
        (f"http://127.0.0.1:80/a/{TOKEN}", "http://127.0.0.1:80/a/***"),
        (f"authorization: Bearer {TOKEN}", "authorization: Bearer ***"),
        (f"cannot write with {ACCESS.agent_token('rollout', 'attempt')}", "cannot write with ***"),
        (f"cannot claim with {MACHINE}, and {worker_token(MACHINE, 'node-1')}", "cannot claim with ***, and ***"),
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


A = "0123456789abcdefABCDEF0123456789"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{A}\n{A}\nabcd==\n-----END RSA PRIVATE KEY-----"
SHAPES = [
    ("sk-proj-" + A, "sk-***"),
    ("sk-ant-api03-" + A, "sk-***"),
    ("sk_live_" + A, "sk_***"),
    ("AIza" + A + "abc", "AIza***"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIA***"),
    ("ASIAIOSFODNN7EXAMPLE", "ASIA***"),
    ("ghp_" + A, "ghp_***"),
    ("github_pat_" + A, "github_pat_***"),
    ("glpat-" + A, "glpat-***"),
    ("hf_" + A, "hf_***"),
    ("nvapi-" + A, "nvapi-***"),
    ("xoxb-123456789012-" + A, "xoxb-***"),
    ("gsk_" + A, "gsk_***"),
    ("xai-" + A, "xai-***"),
    (JWT, "***"),
    (TOKEN, "***"),
    (PEM, "-----BEGIN RSA PRIVATE KEY-----***\n-----END RSA PRIVATE KEY-----"),
    (PEM.replace("\n", "\\n"), "-----BEGIN RSA PRIVATE KEY-----***\\n-----END RSA PRIVATE KEY-----"),
    ("https://host/v1?api-key=mysecret&n=1", "https://host/v1?api-key=***&n=1"),
    ("https://host/v1?n=1&access_token=mysecret", "https://host/v1?n=1&access_token=***"),
    ("postgresql://h/d?user=me&password=p%40ss%2Fw%25rd%231&x=1", "postgresql://h/d?user=me&password=***&x=1"),
    ("postgresql://h/d?sslpassword=p%26ssword", "postgresql://h/d?sslpassword=***"),
    ("go?to=https%3A%2F%2Fh%3Ftoken%3Dmysecret%26n%3D1", "go?to=https%3A%2F%2Fh%3Ftoken%3D***%26n%3D1"),
    ("https://host/keys/0123456789abcdef01234/x", "https://host/keys/***/x"),
    ("x-api-key: mysecret", "x-api-key: ***"),
    ("{'api-key': 'mysecret'}", "{'api-key': '***'}"),
    ("Ocp-Apim-Subscription-Key: mysecret", "Ocp-Apim-Subscription-Key: ***"),
    ("Authorization: Basic bWU6c2VjcmV0", "Authorization: Basic ***"),
    ("sent Basic bWU6c2VjcmV0", "sent Basic ***"),
    ("authorization: mysecret", "authorization: ***"),
    ("Cookie: session=mysecretone", "Cookie: session=***"),
    ("AccountKey=" + A, "AccountKey=***"),
    ("redis://:p@ss@host", "redis://***@host"),
]
ORDINARY = [
    "a bearer token opens it, in Basic understanding",
    "max_tokens=1024 token: something token=TOKEN api_key='unused'",
    "leyden.core.a_name_of_24_letters_abc",
    "sk-learn-is-a-library-of-python, hf_transformers_are_one_too",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "curl -H 'x-api-key: $KEY' 'https://host/?key=<KEY>'",
    "/data/a/the-model-of-the-run-of-monday/policy",
    "the authorization, if there is one, is token, not secret, and 100%basic",
]


@pytest.mark.parametrize(("text", "masked"), SHAPES)
def test_every_shape_is_masked_wherever_it_stands(text: str, masked: str) -> None:
    for before, after in (("", ""), ("failed: ", " (line 3)"), ('"', '"'), ("(", ")")):
        assert mask_text(before + text + after) == before + masked + after
    assert mask_text(masked) == masked


@pytest.mark.parametrize(("text", "masked"), SHAPES)
@pytest.mark.parametrize("before", ["a\\n", "a\\\\r\\\\n", "\\u0022", "\\x22", "to%20", "key%3D", "..."])
def test_every_shape_is_masked_behind_an_escape(text: str, masked: str, before: str) -> None:
    """What `repr`, JSON and URLs write before a secret ends in letters and digits that are no part of it."""
    assert mask_text(before + text) == before + masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"there is no attempt of {TOKEN}.", "there is no attempt of ***."),
        (f"{TOKEN}... and {ACCESS.agent_token('r', 'a')}.", "***... and ***."),
        (json.dumps(json.dumps({"api_key": A})), '"{\\"api_key\\": \\"***\\"}"'),
        (json.dumps(json.dumps({"authorization": A})), '"{\\"authorization\\": \\"***\\"}"'),
        (json.dumps(json.dumps({"x-api-key": A})), '"{\\"x-api-key\\": \\"***\\"}"'),
        (json.dumps(json.dumps(PEM)), r'"\"-----BEGIN RSA PRIVATE KEY-----***\\n-----END RSA PRIVATE KEY-----\""'),
        (repr([("authorization", "mysecret")]), "[('authorization', '***')]"),
        (repr([(b"x-api-key", b"mysecret")]), "[(b'x-api-key', b'***')]"),
        ("to=https%3A%2F%2Fhost%3Fapi_key%3Dmysecret%26n%3D1", "to=https%3A%2F%2Fhost%3Fapi_key%3D***%26n%3D1"),
        ("to=redis%3A%2F%2Fme%3Amysecret%40host%2F1", "to=redis%3A%2F%2F***%40host%2F1"),
        (
            PEM.replace("KEY-----\n0", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB12\n\n0"),
            SHAPES[16][1],
        ),
    ],
)
def test_secrets_are_masked_in_text_that_was_quoted(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert mask_text(text) == text


def test_the_documentation_holds_nothing_to_mask_but_urls_with_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "known_secrets", frozenset)  # an earlier test's key may be the one that pages show
    root = Path(__file__).parents[4]
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for line in page.read_text().splitlines():
            masked = mask_text(line)
            assert masked == line or "***@" in masked, page.name


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a.",
        "-",
        "sk-",
        "eyJ",
        "eyJaaaaaaaaa.",
        "://",
        "a:",
        "bearer ",
        "token=",
        "aa.bb.",
        "\\n",
        "%20sk-",
        "%3A%2F%2F",
        "cookie: ",
        "authorization'",
    ],
)
def test_masking_takes_linear_time(piece: str) -> None:
    """A pattern that takes quadratic time needs minutes for this."""
    text = piece * (100_000 // len(piece))
    began = time.process_time()
    mask_text(text + "(")
    assert time.process_time() - began < 20


def test_what_this_process_was_given_is_masked_by_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MY_TOKEN": "correct horse 1", "MY_PLACE": "at the river 1", "MY_KEY": "short1", "KEY": "/home/me/key1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    text = " | ".join(given.values())
    assert mask_text(text) == "*** | at the river 1 | short1 | /home/me/key1"
    assert mask_text("q=correct%20horse%201") == "q=***"
    remember_secret("battery-staple-7")
    assert mask_text("<battery-staple-7>") == "<***>"


GIVEN = "/pa ss'w\"\u00f6\\\\r\\d+<a>&12345\U0001f600="


WRITINGS: dict[str, Callable[[str], str]] = {
    "quote": quote,
    "lower": lambda text: quote(text, safe="").lower(),
    "quote_plus": quote_plus,
    "twice": lambda text: quote(quote(text)),
    "as httpx does": lambda text: quote(text, safe="!$&'()*+,;=:@/"),
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "repr of repr": lambda text: repr(repr(text)),
    "json": json.dumps,
    "json of other letters": lambda text: json.dumps(text, ensure_ascii=False),
    "json of other libraries": lambda text: json.dumps(text).replace("/", r"\/"),
    "json in json": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "html": html.escape,
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 of a line": lambda text: urlsafe_b64encode(f"{text}\n".encode()).decode(),
}


@pytest.mark.parametrize("name", WRITINGS)
def test_what_was_given_is_masked_however_it_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", GIVEN)
    masked = mask_text(f"it is {WRITINGS[name](GIVEN)} here")
    left = masked.removeprefix("it is ").removesuffix(" here")
    assert left.strip("b'\"\\ \n=") == "***"
    monkeypatch.delenv("MY_PASSWORD")
    assert mask_text(masked) == masked


def test_a_key_that_looks_like_a_path_is_masked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One in a hundred of AWS's keys begins with a slash and has another one."""
    key = "/JalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKE"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
    assert mask_text(f"signed with {key}") == "signed with ***"
    file = tmp_path / "Key1"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(file))
    monkeypatch.setenv("MY_KEY", "/home/me/.keys/service-1.json")
    assert mask_text(f"{file}.json and /home/me/.keys/service-1.json").endswith("and /home/me/.keys/service-1.json")


def test_texts_in_containers_are_masked() -> None:
    assert mask_values({"a": ["hf_" + A, 1], "b": ("x", None)}) == {"a": ["hf_***", 1], "b": ["x", None]}


def test_control_characters_are_written_out() -> None:
    assert visible("a\tb\r\nc\x1b[31m\rd\u202e\x9b") == "a\tb\nc\\x1b[31m\\x0dd\\u202e\\x9b"
    assert visible(visible("\x1b")) == "\\x1b"
