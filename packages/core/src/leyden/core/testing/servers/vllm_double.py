"""`VllmDouble`: a test double of vLLM's HTTP interface, as far as Leyden's engines use it. Loads no model and no vLLM.

Its logits are a function of the last id, the weights' file and the adapters' file, so that tests can compare
log-probabilities across updates. It can also pause, die, keep an outdated prefix cache, or return raw
log-probabilities. `python -m` on this module serves one in a process of its own, which a test may kill.
"""

import argparse
import asyncio
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from leyden.core.engine.vllm.client import ID_PREFIX, MISSING_LOGPROB, VllmClient
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.engine.vllm.server import BASE, VllmServer

VOCAB = 61
CONTEXT = 320
Floats = NDArray[np.float64]


class VllmDouble:
    """One server on the loopback interface, with `start` and `stop`; requests need the token `key`."""

    def __init__(
        self,
        *,
        key: str | None = None,
        salt: int = 0,
        raw: bool = False,
        stale: bool = False,
        sleeps: bool | None = True,
    ) -> None:
        self.key, self.salt = key, salt
        self.sleeps = sleeps
        """Whether it can sleep and wake up. False: waking up fails. None: it has no such endpoints."""
        self.asleep = False
        self.raw, self.stale = raw, stale
        """Whether it returns raw log-probabilities; whether its prefix cache outlives its weights."""
        self.paused = False
        self.requests: list[tuple[str, dict[str, Any]]] = []
        """Path and body of every accepted request."""
        self.running = 0
        """Number of completions in progress."""
        self.token_seconds = 0.001
        self.chat_token_seconds = 0.0
        self.without_likeliest_tokens = 0
        """Number of positions without their likeliest tokens, as in vLLM beside calls that request one token's."""
        self.die_after: int | None = None
        """Number of tokens, over all answers, after which it dies."""
        self.url = ""
        self._adapters: dict[str, int] = {}
        self._cached: int | None = None
        self._runner: web.AppRunner | None = None
        self._ended = asyncio.Event()

    @property
    def port(self) -> int:
        """Port of the last start."""
        return int(self.url.rpartition(":")[2])

    async def start(self, port: int = 0) -> str:
        """Listen on a port, by default a free one; return the URL."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/load_lora_adapter", self._load_adapter)
        app.router.add_get("/is_sleeping", self._sleeping)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_post("/{path:.*}", self._accept)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Die at once, also in the middle of an answer."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        self._ended.set()

    async def ended(self) -> None:
        """Return when it has died."""
        await self._ended.wait()

    def logprobs(self, last: int, name: str = BASE) -> Floats:
        """Return the raw log-probabilities of the next token after `last`."""
        return _log_softmax(_logits(last, self.salt + self._adapters.get(name, 0)))

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        is_open = self.key is None or not request.path.startswith("/v1")
        if not is_open and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.paused and request.path == "/v1/completions":
            return web.json_response({"error": {"message": "paused", "code": 503}}, status=503)
        if request.method == "POST":
            text = await request.text()
            self.requests.append((request.path, json.loads(text) if text else {}))
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        name = "vllm:num_requests_running"
        text = f'# HELP {name} Calls.\n# TYPE {name} gauge\n{name}{{engine="0",model_name="{BASE}"}} {self.running}\n'
        count = sum(path == "/v1/completions" for path, _ in self.requests)
        return web.Response(
            text=f"{text}# HELP vllm:asked_total All.\n# TYPE vllm:asked_total counter\nvllm:asked_total {count}\n"
        )

    async def _models(self, _: web.Request) -> web.Response:
        names = [BASE, *self._adapters]
        return web.json_response({"data": [{"id": name, "max_model_len": CONTEXT} for name in names]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """Answer an agent's chat request; the prompt has a token for each character, and decoding is greedy by default.

        Only requests with `return_token_ids` get token ids; others get nulls in their place.
        """
        body = await request.json()
        text = "".join(str(message["content"]) for message in body["messages"])
        prompt = [ord(character) % VOCAB for character in text][-CONTEXT // 2 :]
        sampling = {"temperature": body.get("temperature") or 0, "top_p": 1.0, "logprobs": 0, "model": BASE}
        ids, rng = list(prompt), np.random.default_rng(body.get("seed"))
        logprobs: list[float] = []
        while len(ids) - len(prompt) < body.get("max_tokens", 8):
            last = ids[-1]
            await asyncio.sleep(self.chat_token_seconds)
            ids += self._sampled(sampling, ids, rng)["token_ids"]
            logprobs.append(float(self.logprobs(last)[ids[-1]]))
        return await _answer_chat(request, body, prompt, ids[len(prompt) :], logprobs)

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        file = Path(body["lora_path"]) / "adapter_model.safetensors"
        if not file.is_file():
            message = f"no adapter in {body['lora_path']}"
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        self._adapters[body["lora_name"]] = zlib.crc32(file.read_bytes())
        return web.Response(text="Success")

    async def _sleeping(self, _: web.Request) -> web.Response:
        if self.sleeps is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"is_sleeping": self.asleep})

    async def _sleep(self, _: web.Request) -> web.Response:
        assert not self.running
        self.asleep = True
        return web.json_response({"status": "sleeping"})

    async def _wake_up(self, _: web.Request) -> web.Response:
        if not self.sleeps:
            return web.json_response({"error": {"message": "out of memory", "code": 500}}, status=500)
        self.asleep = False
        return web.json_response({"status": "awake"})

    async def _accept(self, _: web.Request) -> web.Response:
        return web.json_response({"message": "done"})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt: list[int] = body["prompt"]
        if refused := self._refusal(body, prompt):
            return web.json_response({"error": {"message": refused, "code": 400}}, status=400)
        assert not self.asleep
        self.running += 1
        try:
            if body.get("stream"):
                return await self._stream(request, body, prompt)
            return web.json_response({"choices": [self._scored(body, prompt)]})
        finally:
            self.running -= 1

    def _refusal(self, body: dict[str, Any], prompt: list[int]) -> str | None:
        if body["model"] not in {BASE, *self._adapters}:
            return f"The model {body['model']} does not exist."
        if not prompt or len(prompt) + body["max_tokens"] > CONTEXT or body["max_tokens"] < 1:
            return f"{len(prompt)} tokens and {body['max_tokens']} more do not fit"
        return None

    async def _stream(self, request: web.Request, body: dict[str, Any], prompt: list[int]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        ids = list(prompt)
        finish: str | None = None
        rng = np.random.default_rng(body.get("seed"))
        while finish is None:
            await asyncio.sleep(self.token_seconds)
            await self._die_if_due()
            choice = self._sampled(body, ids, rng)
            ids.append(choice["token_ids"][0])
            if ids[-1] in body["stop_token_ids"]:
                finish = "stop"
            elif len(ids) - len(prompt) == body["max_tokens"]:
                finish = "length"
            await answer.write(b"data: " + json.dumps({"choices": [{**choice, "finish_reason": finish}]}).encode())
            await answer.write(b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def _die_if_due(self) -> None:
        if self.die_after is None:
            return
        self.die_after -= 1
        if self.die_after < 0:
            self.die_after = None
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self.stop()))
            await asyncio.Event().wait()  # until it is dead

    def _sampled(self, body: dict[str, Any], ids: list[int], rng: np.random.Generator) -> dict[str, Any]:
        """Return one token in vLLM's format, with log-probabilities of the sampling distribution unless `raw`."""
        raw = self.logprobs(ids[-1], body["model"])
        logprobs = raw if self.raw else _processed(raw, body["temperature"], body["top_p"])
        sampling_logprobs = _processed(raw, body["temperature"], body["top_p"])
        token = (
            int(raw.argmax())
            if body["temperature"] == 0
            else int((sampling_logprobs + rng.gumbel(size=VOCAB)).argmax())
        )
        reported = _in_vllm_format(logprobs, [token], body["logprobs"])
        if body["logprobs"] and self.without_likeliest_tokens:
            self.without_likeliest_tokens -= 1
            logprobs_by_token = {f"{ID_PREFIX}{token}": float(logprobs[token]), f"{ID_PREFIX}0": MISSING_LOGPROB}
            reported = {
                "token_logprobs": [logprobs_by_token[f"{ID_PREFIX}{token}"]],
                "top_logprobs": [logprobs_by_token],
            }
        return {"token_ids": [token], "logprobs": reported}

    def _scored(self, body: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
        if body.get("prompt_logprobs") is not None:
            all_logprobs = [self.logprobs(last, body["model"]) for last in prompt[:-1]]
            logprobs = [
                {
                    str(i): {"logprob": float(logprobs[i])}
                    for i in [token, *_likeliest(logprobs, body["prompt_logprobs"])]
                }
                for logprobs, token in zip(all_logprobs, prompt[1:], strict=True)
            ]
            return {"token_ids": [0], "prompt_logprobs": [None, *logprobs], "finish_reason": "length"}
        if wanted := body.get("logprob_token_ids"):
            return {"token_ids": [0], "logprobs": _in_vllm_format(self._cached_logprobs(body, prompt), wanted, 0)}
        return {**self._sampled(body, prompt, np.random.default_rng()), "finish_reason": "length"}

    def _cached_logprobs(self, body: dict[str, Any], prompt: list[int]) -> Floats:
        """Return log-probabilities of the prompt's last position, from outdated weights with a `stale` prefix cache."""
        salt = self.salt + self._adapters.get(body["model"], 0)
        if self._cached is None:
            self._cached = salt
        return _log_softmax(_logits(prompt[-1], self._cached if self.stale else salt))


class DoubleServer(VllmServer):
    """A `VllmServer` whose process is a double in this process; every start creates one with the same settings."""

    def __init__(self, options: VllmOptions | None = None, **settings: Any) -> None:
        super().__init__(options or VllmOptions())
        self.settings = settings
        self.double = VllmDouble()
        self.starts: list[str] = []
        """Argument of each start."""
        self.fails = False
        """Whether the next start fails."""

    async def start(self, source: str) -> VllmClient:
        """Start a double with the weights in a folder."""
        await self.stop()
        self.starts.append(source)
        weights = Path(source) / "model.safetensors"
        salt = zlib.crc32(weights.read_bytes()) if weights.is_file() else 0
        self.double = VllmDouble(key="secret", salt=salt, **self.settings)
        if self.fails:
            await self.double.stop()
        else:
            await self.double.start()
        self.client = VllmClient(self.double.url or "http://127.0.0.1:1", key="secret")
        return self.client

    def reason(self) -> str:
        """Return why the server failed."""
        return "it was told to fail"

    async def ended(self) -> str:
        """Return when the double has died."""
        await self.double.ended()
        return "killed"

    async def stop(self) -> None:
        """Stop the double."""
        await self.double.stop()
        if self.client is not None:
            await self.client.close()
            self.client = None


async def _answer_chat(
    request: web.Request, body: dict[str, Any], prompt: list[int], ids: list[int], logprobs: list[float]
) -> web.StreamResponse:
    """Write an answer in vLLM's format: whole, or one token per event."""
    returns_ids = bool(body.get("return_token_ids"))
    known = {"id": f"chatcmpl-{zlib.crc32(bytes(prompt)):08x}", "created": 0, "model": body["model"]}

    def choice(kind: str, part: slice, finish: str | None) -> dict[str, Any]:
        content = [{"token": f" {i}", "logprob": p} for i, p in zip(ids[part], logprobs[part], strict=True)]
        return {
            "index": 0,
            kind: {"role": "assistant", "content": "".join(f" {i}" for i in ids[part])},
            "logprobs": {"content": content} if body.get("logprobs") else None,
            "finish_reason": finish,
            "token_ids": ids[part] if returns_ids else None,
        }

    if not body.get("stream"):
        whole = {**known, "object": "chat.completion", "choices": [choice("message", slice(None), "length")]}
        return web.json_response({**whole, "prompt_token_ids": prompt if returns_ids else None})
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for n in range(len(ids)):
        event = {
            **known,
            "object": "chat.completion.chunk",
            "choices": [choice("delta", slice(n, n + 1), "length" if n == len(ids) - 1 else None)],
            "prompt_token_ids": prompt if returns_ids and n == 0 else None,
        }
        await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await answer.write(b"data: [DONE]\n\n")
    return answer


def _logits(last: int, salt: int) -> Floats:
    return np.random.default_rng([last, salt]).normal(0.0, 1.5, VOCAB)


def _log_softmax(logits: Floats) -> Floats:
    top = logits.max()
    return logits - top - np.log(np.exp(logits - top).sum())


def _processed(raw: Floats, temperature: float, top_p: float) -> Floats:
    if temperature == 0:
        return raw
    warm = _log_softmax(raw / temperature)
    order = np.argsort(-warm)
    kept = np.cumsum(np.exp(warm[order])) - np.exp(warm[order]) < top_p
    masked = np.full(VOCAB, -np.inf)
    masked[order[kept]] = warm[order[kept]]
    return masked - np.log(np.exp(masked[order[kept]]).sum())


def _likeliest(logprobs: Floats, count: int) -> list[int]:
    return [int(token) for token in np.argsort(-logprobs)[:count]]


def _in_vllm_format(logprobs: Floats, ids: list[int], top: int) -> dict[str, Any]:
    shown = [{f"{ID_PREFIX}{i}": float(logprobs[i]) for i in [token, *_likeliest(logprobs, top)]} for token in ids]
    return {"token_logprobs": [float(logprobs[token]) for token in ids], "top_logprobs": shown}


async def _serve(arguments: argparse.Namespace) -> None:
    double = VllmDouble()
    double.token_seconds = double.chat_token_seconds = arguments.token_seconds
    sys.stdout.write(await double.start(arguments.port) + "\n")
    sys.stdout.flush()
    await double.ended()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-seconds", type=float, default=0.001)
    asyncio.run(_serve(parser.parse_args()))
