"""Requests made from valid ones by breaking them: bytes, JSON, headers, framing, paths. Knows nothing of answers.

Every request follows from the seed and its number alone.
"""

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

from fuzz import clients
from fuzz.corpus import CHAT, COMPLETIONS, KEY_MARK, MESSAGES, METHODS, NUMBERS, PATHS, RESPONSES, TEXTS
from fuzz.schemas import choice_text, grammar_text, pattern_text, schema_text

Headers: TypeAlias = list[tuple[bytes, bytes]]

_OF_MESSAGES = (*MESSAGES, *clients.MESSAGES)
_OF_ANSWERS = ("max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k")
"""Fields that a request to count tokens does not have."""
_COUNTS = tuple({key: value for key, value in body.items() if key not in _OF_ANSWERS} for body in _OF_MESSAGES)
_BODIES: dict[str, tuple[tuple[dict[str, Any], ...], float]] = {
    "/v1/chat/completions": ((*CHAT, *clients.CHAT), 4),
    "/v1/completions": ((*COMPLETIONS, *clients.COMPLETIONS), 3),
    "/v1/responses": ((*RESPONSES, *clients.RESPONSES), 3),
    "/v1/messages": (_OF_MESSAGES, 3),
    "/v1/messages/count_tokens": (_COUNTS, 0.7),
    "/v1/responses/input_tokens": ((*RESPONSES, *clients.RESPONSES), 0.3),
}
"""Bodies by path, and how often each path is asked."""
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_SAMPLED = (
    "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens",
    "max_tokens", "min_p", "n", "presence_penalty", "reasoning_effort", "repetition_penalty", "return_token_ids",
    "seed", "stop", "stop_sequences", "stop_token_ids", "temperature", "top_k", "top_logprobs", "top_p",
)  # fmt: skip
_BOMB = gzip.compress(bytes(40 << 20), mtime=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, byte by byte."""

    kind: str
    """How it was made."""
    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: Headers = field(default_factory=list[tuple[bytes, bytes]])
    body: bytes = b""
    framed: bool = True
    """Whether its length is what it says, so that the connection can go on after it."""
    chunked: bool = False
    version: str = "HTTP/1.1"

    def encode(self, more: Headers) -> bytes:
        """Return what is sent."""
        headers = [(b"host", b"localhost"), *more, *self.headers]
        names = {name.lower() for name, _ in headers}
        if self.chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        elif b"content-length" not in names and b"transfer-encoding" not in names:
            headers.append((b"content-length", b"%d" % len(self.body)))
        head = f"{self.method} {self.path} {self.version}\r\n".encode("utf-8", "surrogateescape")
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        return head + lines + b"\r\n" + (_chunks(self.body) if self.chunked else self.body)


def _chunks(body: bytes) -> bytes:
    pieces = [body[start : start + 1000] for start in range(0, len(body), 1000)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def request(seed: int, number: int) -> Request:
    """Return request `number` of a campaign."""
    rng = Random(f"{seed}/{number}")
    [(path, (bodies, _))] = rng.choices(list(_BODIES.items()), [weight for _, weight in _BODIES.values()])
    body = json.dumps(rng.choice(bodies), ensure_ascii=rng.random() < 0.5).encode()
    valid = Request(kind="valid", path=path, body=body, headers=_secrets(rng))
    if rng.random() < 0.05:
        return valid
    kind, weight = _pick(rng)
    changed = weight(rng, valid)
    return replace(changed, kind=kind)


def _pick(rng: Random) -> tuple[str, Callable[[Random, Request], Request]]:
    kinds, weights = list(_KINDS), [weight for _, weight in _KINDS.values()]
    kind = rng.choices(kinds, weights)[0]
    return kind, _KINDS[kind][0]


def _secrets(rng: Random) -> Headers:
    headers: Headers = [(b"content-type", b"application/json")]
    for name in (b"authorization", b"api-key", b"cookie", b"x-api-key"):
        if rng.random() < 0.3:
            headers.append((name, (b"Bearer " if name == b"authorization" else b"") + KEY_MARK.encode()))
    return headers


# --- Bytes


def _bytes(rng: Random, valid: Request) -> Request:
    body = bytearray(valid.body)
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        at, size = rng.randrange(len(body) + 1), rng.choice((1, 2, 10, 100))
        match rng.randrange(5):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del body[at : at + size]
            case 2:
                body[at:at] = body[at : at + size]
            case 3:
                body[at:at] = rng.randbytes(size)
            case _:
                other = json.dumps(rng.choice((*CHAT, *COMPLETIONS, *RESPONSES, *MESSAGES))).encode()
                body[at:at] = other[rng.randrange(len(other)) :][:size]
    return replace(valid, body=bytes(body))


def _cut(rng: Random, valid: Request) -> Request:
    return replace(valid, body=valid.body[: rng.randrange(len(valid.body))])


def _alien(rng: Random, valid: Request) -> Request:
    """A body that is no object of JSON at all."""
    bodies = (b"", b"null", b"[]", b"0", b'"x"', b"\xef\xbb\xbf" + valid.body, valid.body.decode().encode("utf-16"))
    bodies += (b"[" * 100_000, b'{"a":' * 50_000, b"\x00" * 50, valid.body * 2, b"a=b&c=d", rng.randbytes(300))
    return replace(valid, body=rng.choice(bodies))


# --- JSON


def _json(rng: Random, valid: Request) -> Request:
    """Replace, add or double values where they stand in the document."""
    document: Any = json.loads(valid.body)
    raw: dict[str, str] = {}
    for n in range(rng.choice((1, 1, 1, 2, 3))):
        mark = f"@@{n}@@"
        raw[f'"{mark}"'] = _value(rng)
        _plant(rng, document, mark)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    for mark, value in raw.items():
        text = text.replace(mark, value)
    return replace(valid, body=text.encode("utf-8", "surrogatepass"))


def _plant(rng: Random, document: Any, mark: str) -> None:
    """Put `mark` in the place of a value, or beside one."""
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [document]
    while stack:
        here = stack.pop()
        items: Any = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # any JSON
        for key, value in items:
            places.append((here, key))  # pyright: ignore[reportUnknownArgumentType]
            stack.append(value)
    here, key = rng.choice(places)
    if isinstance(here, dict) and rng.random() < 0.2:
        key = rng.choice(
            ("base_url", "api_base", "api_key", "extra_body", "__proto__", "", "model", "n", "\u0000", "logit_bias")
        )
    here[key] = mark


def _value(rng: Random) -> str:
    """JSON, or nearly, of a value that nobody expects."""
    depth = rng.choice((10, 150, 400, 900, 1100, 30_000))
    values = (
        *NUMBERS,
        *TEXTS,
        "null",
        "true",
        "[]",
        "{}",
        "-1",
        "0",
        "0.5",
        "[" * depth + "]" * depth,
        '{"a":' * depth + "1" + "}" * depth,
        '{"a": 1, "a": 2}',
        "[" + "0," * 5000 + "0]",
        '[{"type": "text"}]',
        '{"type": "function"}',
        '{"$ref": "#"}',
        '"' + "é" * 5000 + '"',
        "[null]",
        '{"": {"": [""]}}',
    )
    return rng.choice(values)


def _deep(rng: Random, valid: Request) -> Request:
    """Nested as deeply as can just be read, where it is read and written again."""
    document: Any = json.loads(valid.body)
    depth = rng.choice((200, 400, 600, 800, rng.randrange(900, 1010)))
    nested = rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))
    match rng.randrange(3):
        case 0:
            document["metadata"] = {"api_key": "@@"}
        case 1:
            function = {"name": "f", "parameters": {"p": "@@"}}
            tools: dict[str, Any] = {
                "/v1/chat/completions": {"type": "function", "function": function},
                "/v1/responses": {"type": "function", **function},
                "/v1/messages": {"name": "f", "input_schema": {"p": "@@"}},
            }
            document["tools"] = [tools.get(valid.path, "@@")]
        case _:
            document["reasoning"] = document["response_format"] = "@@"
    return replace(valid, body=json.dumps(document).replace('"@@"', nested).encode())


def _format(rng: Random, valid: Request) -> Request:
    """A format of the answer, or tools, of which no grammar is easily made."""
    document: Any = json.loads(valid.body)
    marks = {
        "@@schema@@": schema_text,
        "@@pattern@@": pattern_text,
        "@@grammar@@": grammar_text,
        "@@choice@@": choice_text,
    }
    strict = rng.choice((True, True, False, None, "yes"))
    named = {"name": "n", "strict": strict, "schema": "@@schema@@"}
    function = {"name": "weather", "parameters": "@@schema@@", "strict": strict}
    extended: list[dict[str, Any]] = [
        {"guided_json": "@@schema@@"},
        {"guided_regex": "@@pattern@@"},
        {"guided_grammar": "@@grammar@@"},
        {"guided_choice": "@@choice@@"},
        {"structured_outputs": {rng.choice(("json", "regex", "choice", "grammar", "json_object")): "@@schema@@"}},
        {"structured_outputs": {"regex": "@@pattern@@"}},
        {"structured_outputs": {"grammar": "@@grammar@@"}},
    ]
    chat: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"response_format": rng.choice(({"type": "json_object"}, {"type": "json_schema"}, {"type": 5}, "@@schema@@"))},
        {"tools": [{"type": "function", "function": function}], "tool_choice": rng.choice(("required", "auto"))},
    ]
    messages: list[dict[str, Any]] = [
        {"output_config": {"format": {"type": "json_schema", "schema": "@@schema@@"}}},
        {"tools": [{"name": "weather", "input_schema": "@@schema@@"}], "tool_choice": {"type": "any"}},
    ]
    responses: list[dict[str, Any]] = [
        {"text": {"format": {"type": "json_schema", **named}}},
        {"tools": [{"type": "function", **function}], "tool_choice": "required"},
    ]
    possible = {
        "/v1/chat/completions": [*chat, *extended],
        "/v1/completions": extended,
        "/v1/responses": responses,
        "/v1/responses/input_tokens": responses,
    }
    names = ("response_format", "structured_outputs", "text", "output_config", *_GUIDED)
    kept = {key: value for key, value in document.items() if key not in names}
    text = json.dumps(kept | rng.choice(possible.get(valid.path, messages)))
    for mark, make in marks.items():
        text = text.replace(f'"{mark}"', make(rng))
    return replace(valid, body=text.encode("utf-8", "surrogatepass"))


def _sampling(rng: Random, valid: Request) -> Request:
    """Numbers, maps and lists that shape the answer, out of their range or of another type."""
    document: Any = json.loads(valid.body)
    names = rng.sample(_SAMPLED, rng.choice((1, 1, 2, 4)))
    text = json.dumps({key: value for key, value in document.items() if key not in names})[:-1]
    fields = [f", {json.dumps(name)}: {_sampled(rng, name)}" for name in names]
    return replace(valid, body=("".join([text, *fields]) + "}").encode("utf-8", "surrogatepass"))


def _sampled(rng: Random, name: str) -> str:
    if name == "logit_bias" and rng.random() < 0.7:
        token = rng.choice(("7", "600", "-1", "1e3", "9" * 30, "", "a", "٣", "0x1", "\\ud800", "2147483648"))
        return f'{{"{token}": {rng.choice((*NUMBERS, "5", "-100", "null", "[]"))}}}'
    if name == "logit_bias":
        return json.dumps({str(n): 1 for n in range(rng.choice((1024, 1025, 20_000)))})
    if name in ("stop_token_ids", "stop") and rng.random() < 0.7:
        return (
            f"[{', '.join(rng.choice((*NUMBERS, *TEXTS, '3', '-1', 'null')) for _ in range(rng.choice((1, 2, 70))))}]"
        )
    return rng.choice((*NUMBERS, *NUMBERS, "null", "true", '"1"', "[]", "{}", "-0.0", "0", "1", "2", "-2", "1e-400"))


def _doubled(rng: Random, valid: Request) -> Request:
    """The same field twice."""
    name, value = rng.choice(list(json.loads(valid.body).items()))
    other = rng.choice((json.dumps(value), _value(rng)))
    text = valid.body.decode()[:-1] + f", {json.dumps(name)}: {other}}}"
    return replace(valid, body=text.encode("utf-8", "surrogatepass"))


def _secret(rng: Random, valid: Request) -> Request:
    """A key, or another server, named in a field."""
    document: Any = json.loads(valid.body)
    name = rng.choice(("api_key", "extra_headers", "base_url", "api_base", "metadata", "metadata"))
    if name == "metadata" and valid.path.endswith("/responses"):
        name = "api_key"  # a stored answer gives its metadata back as they are
    secret = {"authorization": f"Bearer {KEY_MARK}", "api_key": KEY_MARK, "x-api-key": KEY_MARK}
    document[name] = {
        "api_key": KEY_MARK,
        "base_url": f"https://me:{KEY_MARK}@elsewhere.invalid/v1",
        "api_base": "http://127.0.0.1:1",
    }.get(name, secret)
    return replace(valid, body=json.dumps(document).encode())


# --- Headers and framing


def _encoded(rng: Random, valid: Request) -> Request:
    """Compressed, rightly or not."""
    packed = gzip.compress(valid.body, mtime=0)  # a seed is to make the same request at any time
    encoding, body = rng.choice(
        (
            (b"gzip", packed),
            (b"deflate", zlib.compress(valid.body)),
            (b"gzip", packed[: len(packed) // 2]),
            (b"gzip", _BOMB),
            (b"gzip", valid.body),
            (b"br", valid.body),
            (b"gzip, gzip", gzip.compress(packed, mtime=0)),
            (b"identity", valid.body),
            (b"zstd", valid.body),
            (b"deflate", packed),
            (b"gzip", packed + b"rest"),
            (b"gzip", packed * 3),
            (b"\xff", packed),
        )
    )
    return replace(valid, body=body, headers=[*valid.headers, (b"content-encoding", encoding)])


def _private(rng: Random, valid: Request) -> Request:
    """The headers between an agent's process and us, by somebody else."""
    names = (b"x-leyden-agent", b"x-leyden-node", b"x-leyden-trace", b"x-leyden-span", b"x-leyden-policy")
    names += (b"x-stainless-retry-count", b"x-upstream", b"x-forwarded-host", b"x-leyden-", b"content-type", b"accept")
    values = (
        b"",
        b"%00",
        b"%ff%fe",
        b"a" * 3000,
        b"1",
        b"0" * 32,
        b"policy",
        b"http://elsewhere.invalid",
        b"%",
        b"\xe9\xff",
    )
    more = [(rng.choice(names), rng.choice(values)) for _ in range(rng.randint(1, 4))]
    return replace(valid, headers=[*valid.headers, *more])


def _framed(rng: Random, valid: Request) -> Request:
    """A length that is not the body's, or said twice."""
    right = b"%d" % len(valid.body)
    length, coding = b"content-length", b"transfer-encoding"
    more: Headers = rng.choice(
        (
            [(length, b"%d" % (len(valid.body) - 1))],
            [(length, b"0")],
            [(length, b"99999999999")],
            [(length, b"-1")],
            [(length, b"9" * 5000)],
            [(length, b"x")],
            [(length, right), (length, b"3")],
            [(length, right), (length, right)],
            [(length, right), (coding, b"chunked")],
            [(coding, b"chunked"), (length, right)],
            [(coding, b"identity, chunked")],
            [(coding, b"xchunked")],
            [(coding, b"chunked")],
            [(length, b"+" + right)],
            [(length, b" " + right)],
            [(length, b"")],
            [(b"content-length ", right)],
            [(b" content-length", right)],
            [(b"a\x00b", b"c")],
            [(b"a", b"b\x00c")],
        )
    )
    return replace(valid, headers=[*valid.headers, *more], framed=False)


def _short(rng: Random, valid: Request) -> Request:
    """A body that never comes to its end."""
    return replace(valid, headers=[*valid.headers, (b"content-length", b"%d" % (len(valid.body) + 5))], framed=False)


def _chunky(rng: Random, valid: Request) -> Request:
    return replace(valid, chunked=True)


def _head(rng: Random, valid: Request) -> Request:
    """A head that is too long, or too strange."""
    more: Headers = rng.choice(
        (
            [(b"x-long", b"a" * 70_000)],
            [(b"a%d" % n, b"b") for n in range(300)],
            [(b"expect", b"100-continue")],
            [(b"upgrade", b"websocket"), (b"connection", b"upgrade")],
            [(b"connection", b"close")],
            [(b"host", b"other")],
            [(b"te", b"trailers")],
            [(b"content-type", b"text/plain")],
            [(b"content-type", b"multipart/form-data")],
        )
    )
    version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP", ""))
    return replace(valid, headers=[*valid.headers, *more], version=version, framed=False)


def _placed(rng: Random, valid: Request) -> Request:
    """Another path, or another method."""
    path = rng.choice((*PATHS, valid.path))
    method = rng.choice((*METHODS, "POST", "POST", "GET", "GET", "GET"))
    return replace(valid, path=path, method=method, framed=False)


_KINDS: dict[str, tuple[Callable[[Random, Request], Request], float]] = {
    "bytes": (_bytes, 30),
    "cut": (_cut, 6),
    "alien": (_alien, 4),
    "json": (_json, 34),
    "doubled": (_doubled, 5),
    "deep": (_deep, 2),
    "format": (_format, 8),
    "sampling": (_sampling, 8),
    "secret": (_secret, 3),
    "encoded": (_encoded, 4),
    "private": (_private, 5),
    "framing": (_framed, 3),
    "short": (_short, 0.3),
    "chunked": (_chunky, 2),
    "head": (_head, 2),
    "place": (_placed, 5),
}
"""How a request is broken, and how often."""
