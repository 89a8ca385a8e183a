"""Rollout replicas on a CPU for VERL, for tests: Hugging Face sampling behind the part of vLLM's HTTP that we speak.

VERL's stock checkpoint engine brings it the weights, as it does vLLM's replicas. One token after the other, no cache.
Loaded by `import verl` itself, with `platform`, in the variables of `environment`.
"""

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncGenerator, Iterable
from importlib import import_module
from typing import Any

import torch

NAME = "hf_cpu"
"""`actor_rollout_ref.rollout.name` in VERL's configuration."""

# VERL and Ray are not among the packages that types are checked with.
ray: Any = import_module("ray")
_base: Any = import_module("verl.workers.rollout.base")
_replica: Any = import_module("verl.workers.rollout.replica")
_utils: Any = import_module("verl.workers.rollout.utils")
BaseRollout: Any = _base.BaseRollout
RolloutReplica: Any = _replica.RolloutReplica


class CpuAdapter(BaseRollout):
    """Beside a replica's server, in the trainer's process or in one of its own: hands it the trained weights."""

    def __init__(self, *args: Any, replica_rank: int = -1, **kwargs: Any) -> None:
        base: Any = super()
        base.__init__(*args, **kwargs)
        # In a trainer's process VERL does not say: each of its ranks has a replica of its own.
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Keep everything: a CPU's memory is not shared with a GPU's cache."""

    async def update_weights(self, weights: Iterable[tuple[str, Any]], global_steps: int = 0, **_: Any) -> None:
        """Send all weights at once; every rank has to draw them from its shards, and sends them to its replica."""
        drawn = _utils.ensure_async_iterator(weights)
        whole = {name: tensor.detach().cpu().float().clone() async for name, tensor in drawn}
        await ray.get_actor(f"{NAME}_{self.replica_rank}").update_weights.remote(whole, global_steps)


class Sampler:
    """A model that draws one token after the other."""

    def __init__(self, path: str) -> None:
        transformers: Any = import_module("transformers")
        torch.set_num_threads(1)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.lock = threading.Lock()

    def log_probs(self, ids: list[int], temperature: float = 1.0) -> Any:
        """Log-probabilities after each of `ids`, of the distribution that is drawn from."""
        with self.lock, torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0]
        return (logits / (temperature or 1.0)).log_softmax(-1)

    def draw(self, ids: list[int], temperature: float) -> tuple[int, Any]:
        """The next token, and the log-probabilities it was drawn from."""
        after = self.log_probs(ids, temperature)[-1]
        token = torch.multinomial(after.exp(), 1) if temperature else after.argmax()
        return int(token), after


def _logprobs(token: int, after: Any, top: int, asked: Iterable[int] = ()) -> dict[str, Any]:
    told = {token, *(int(other) for other in after.topk(top).indices), *asked}
    places = {f"token_id:{other}": float(after[other]) for other in told}
    return {"token_logprobs": [float(after[token])], "top_logprobs": [places]}


class Endpoint:
    """`/v1/completions` on token ids, and what goes with it."""

    def __init__(self, sampler: Sampler, name: str, length: int) -> None:
        self._sampler, self._name, self._length = sampler, name, length

    def app(self) -> Any:
        """The ASGI application."""
        applications: Any = import_module("starlette.applications")
        routing: Any = import_module("starlette.routing")
        responses: Any = import_module("starlette.responses")

        async def health(_: Any) -> Any:
            return responses.Response()

        async def models(_: Any) -> Any:
            return responses.JSONResponse({"data": [{"id": self._name, "max_model_len": self._length}]})

        async def completions(request: Any) -> Any:
            body = await request.json()
            if body.get("stream"):
                return responses.StreamingResponse(self._stream(body), media_type="text/event-stream")
            choice = await asyncio.to_thread(self._one, body)
            return responses.JSONResponse({"choices": [choice]})

        routes = [
            routing.Route("/health", health),
            routing.Route("/v1/models", models),
            routing.Route("/v1/completions", completions, methods=["POST"]),
        ]
        return applications.Starlette(routes=routes)

    def _one(self, body: dict[str, Any]) -> dict[str, Any]:
        """One drawn token, and what the prompt's were worth where that is asked."""
        ids = list(body["prompt"])
        token, after = self._sampler.draw(ids, body["temperature"])
        told = _logprobs(token, after, body.get("logprobs") or 0, body.get("logprob_token_ids", ()))
        choice: dict[str, Any] = {"token_ids": [token], "logprobs": told, "finish_reason": "length"}
        if body.get("prompt_logprobs") is not None:
            every = self._sampler.log_probs(ids)
            places = [{str(later): {"logprob": float(every[at][later])}} for at, later in enumerate(ids[1:])]
            choice["prompt_logprobs"] = [None, *places]
        return choice

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[str]:
        ids, left = list(body["prompt"]), int(body["max_tokens"])
        while True:
            token, after = await asyncio.to_thread(self._sampler.draw, ids, body["temperature"])
            ids.append(token)
            left -= 1
            finish = "stop" if token in body.get("stop_token_ids", ()) else None if left else "length"
            told = _logprobs(token, after, body.get("logprobs") or 0)
            choice = {"token_ids": [token], "logprobs": told, "finish_reason": finish}
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
            if finish is not None:
                yield "data: [DONE]\n\n"
                return


@ray.remote(num_cpus=0, max_concurrency=64)
class CpuServer:
    """A replica's process."""

    def __init__(self, path: str, length: int) -> None:
        uvicorn: Any = import_module("uvicorn")
        self._sampler = Sampler(path)
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(Endpoint(self._sampler, "policy", length).app(), log_level="warning")
        serve = uvicorn.Server(config).run
        threading.Thread(target=serve, kwargs={"sockets": [listener]}, daemon=True).start()

    def address(self) -> str:
        """Where it is reached."""
        return f"127.0.0.1:{self._port}"

    def update_weights(self, weights: dict[str, Any], step: int) -> None:
        """Serve `weights` from the next token on."""
        with self._sampler.lock:
            missing = self._sampler.model.load_state_dict(weights, strict=False).missing_keys
        if set(missing) - {"lm_head.weight"}:
            raise RuntimeError(f"step {step} lacks the weights {missing}")

    def sleep(self) -> None:
        """Stay awake."""

    def wake_up(self) -> None:
        """Stay awake."""

    def abort_all_requests(self, reject_request: bool = False) -> None:
        """Let them end."""

    def resume_generation(self) -> None:
        """Nothing was aborted."""

    def clear_kv_cache(self) -> None:
        """Nothing is cached."""

    def release_kv_cache(self) -> None:
        """Nothing is cached."""

    def resume_kv_cache(self) -> None:
        """Nothing is cached."""


class CpuReplica(RolloutReplica):
    """VERL's handle of a replica."""

    async def launch_servers(self) -> None:
        """Start the server's process."""
        model: Any = self.model_config
        path = model.get("path") if hasattr(model, "get") else model.path
        length = int(self.config.max_model_len or 1024)
        server = CpuServer.options(name=f"{NAME}_{self.replica_rank}").remote(path, length)
        self.servers = [server]
        self._server_handle = server
        self._server_address = await server.address.remote()


_base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.CpuAdapter"
_replica.RolloutReplicaRegistry.register(NAME, lambda: CpuReplica)
