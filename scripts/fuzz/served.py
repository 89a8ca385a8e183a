"""A gateway in a process of its own, with a store on disk and a scripted engine: what a campaign is sent to.

Prints one line of JSON when it listens, and ends when its standard input does.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import cast

from leyden.core.data.identity import mint, new_key
from leyden.core.engine.base import GenerateRequest, ModelInfo, TokenChunk
from leyden.core.errors import GrammarError, UnusableGrammar
from leyden.core.gateway.app import Gateway, GatewayLimits
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.http.body import BodyLimits
from leyden.core.gateway.http.protocol import ConnectionLimits
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.grammar.compiler import GrammarCompiler
from leyden.core.store.open import open_store
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine

POLICY = Path(__file__).parents[2] / "examples" / "calculator_langgraph" / "policy"
VOCABULARY = 673
CODEC = HuggingFaceCodec(POLICY)
LIMITS = GatewayLimits(body=BodyLimits(max_bytes=1 << 20, max_decoded_bytes=1 << 20, gap_seconds=0.5, seconds=5))
CONNECTIONS = ConnectionLimits(head_seconds=5.0)
"""Short, so that a campaign that is full of unfinished requests comes to its end."""
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Delft"}}\n</tool_call>'


class ForgetfulEngine(ScriptedEngine):
    """A scripted engine that keeps no log, so that the memory of its process is the gateway's.

    It compiles grammars as the embedded engine does, and then answers what its script says.
    """

    grammars = GrammarCompiler(str(POLICY), VOCABULARY)
    compiling = ThreadPoolExecutor(1)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Answer, and forget."""
        if request.sampling.grammar:
            try:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self.compiling, self.grammars.begin, request.sampling.grammar)
            except GrammarError as error:
                raise UnusableGrammar(str(error)) from error
        try:
            async with aclosing(cast("AsyncGenerator[TokenChunk]", super().generate(request))) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.log.clear()
            self.requests.clear()


def answer(request: GenerateRequest) -> ScriptedAnswer:
    """Say something, with a call of a tool where there is one."""
    offered = '"weather"' in CODEC.decode(request.prompt_ids)
    ids = CODEC.encode_text(CALL if offered else "Sunny ☀️, 20 °C.")
    return ScriptedAnswer(ids=[*ids, CODEC.stop_ids[0]], chunk_size=9)


async def serve(store_path: Path, attempts: int) -> None:
    """Serve until nobody writes to us any more."""
    store, key = await open_store(f"sqlite:///{store_path}"), new_key()
    engine = ForgetfulEngine(answer, model=ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY))
    gateway = Gateway(store, ServedPolicy(name="policy", engine=engine, codec=CODEC), key, limits=LIMITS)
    server = GatewayServer(gateway.app, limits=CONNECTIONS)
    tokens: list[str] = []
    for _ in range(attempts):
        rollout = await store.start_rollout("a task")
        tokens.append(mint(key, rollout.rollout_id, rollout.attempt.attempt_id))
    print(json.dumps({"url": await server.start(), "tokens": tokens}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await engine.close()
    await store.close()


def main() -> None:
    """Serve; what is logged goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--attempts", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG)
    asyncio.run(serve(options.store, options.attempts))


if __name__ == "__main__":
    main()
