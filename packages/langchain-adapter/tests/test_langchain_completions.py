"""LangChain's `OpenAI`, which continues texts: its calls are recorded below the agent that made them, and trained."""

import pytest
from langchain_core.prompts import PromptTemplate
from langchain_openai import OpenAI

from leyden.core.data import semconv
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.engine.base import GenerateRequest
from leyden.core.testing.byte_codec import STOP, ByteCodec
from leyden.core.testing.running import running
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import scripted_gateway
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.wire import routing
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector
from leyden.langchain import LangChainInstrumentor

pytestmark = pytest.mark.integration
CODEC = ByteCodec()


def continued(request: GenerateRequest) -> ScriptedAnswer:
    return ScriptedAnswer(ids=[*f"<{CODEC.decode(request.prompt_ids)}>".encode(), STOP], chunk_size=4)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_chain_around_a_text_model(streaming: bool) -> None:
    model = OpenAI(model="gpt-3.5-turbo-instruct", api_key="sk-own", temperature=0, streaming=streaming)  # pyright: ignore[reportArgumentType]  # a plain text is accepted
    agent = PromptTemplate.from_template("Say {word}.") | model
    tape = SpanTape()
    LangChainInstrumentor().instrument(tracer_provider=tape.provider)
    routing.install(fail_closed=True)
    try:
        async with scripted_gateway(continued) as gateway:
            await gateway.store.enqueue_many_rollouts(
                [EnqueueRollout(input={"word": "hi"}, rollout_id="ro", mode="train")]
            )
            async with running(gateway.store, agent, gateway_url=gateway.url, key=gateway.key):
                [ended] = await gateway.store.wait_for_rollouts(rollout_ids=["ro"], timeout=10)
            spans = (await gateway.store.query_spans("ro")).items
            [attempt] = await gateway.store.query_attempts("ro")
    finally:
        routing.uninstall()
        LangChainInstrumentor().uninstrument()
    assert ended.status == "succeeded"
    [call] = [span for span in spans if semconv.CALL_ID in span.attributes]
    [result] = [span.attributes[semconv.RESULT] for span in spans if semconv.RESULT in span.attributes]
    assert result == "<Say hi.>"
    # LangChain opens the spans of several prompts as tasks of their own, so the call is below the agent.
    assert call.parent_id in {f"{span.context.span_id:016x}" for span in tape.spans() if span.context}
    assert tape.attribute("text_completion gpt-3.5-turbo-instruct", semconv.OPERATION) == "text_completion"
    [transition] = assemble(ended, attempt, spans, Selector()).transitions
    assert bytes(transition.prompt_ids.tolist()) == b"Say hi."
    assert transition.agent == call.attributes[semconv.AGENT_NAME]
