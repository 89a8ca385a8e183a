"""OpenAI Agents SDK: a fake model that is traced as the SDK's own Responses model is, and an `Agent` with it."""

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, ModelSettings, ModelTracing, Runner, Usage, function_tool, trace
from agents.tracing import response_span
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)

from overhead import model
from overhead.driver import instrumented, named

ADAPTER = "leyden.openai_agents:OpenAIAgentsAdapter"
INSTRUMENTOR = "leyden.openai_agents:OpenAIAgentsInstrumentor"
OPENINFERENCE = "openinference.instrumentation.openai_agents:OpenAIAgentsInstrumentor"
DETAILS = {"cached_tokens": 0, "cache_write_tokens": 0}
"""The second key is one of newer versions."""
USAGE = ResponseUsage.model_validate(
    {**model.TOKENS, "input_tokens_details": DETAILS, "output_tokens_details": {"reasoning_tokens": 0}}
)
USED = Usage(
    requests=1,
    input_tokens=USAGE.input_tokens,
    output_tokens=USAGE.output_tokens,
    total_tokens=USAGE.total_tokens,
)


def said(*output: ResponseOutputItem) -> Response:
    """Return a response as the provider would send it."""
    return Response(
        id="resp-1",
        created_at=0,
        model=model.MODEL,
        object="response",
        output=list(output),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=USAGE,
    )


CALLED = said(
    ResponseFunctionToolCall(arguments=model.ARGUMENTS_TEXT, call_id="call-1", name=model.TOOL, type="function_call")
)
ANSWERED = said(
    ResponseOutputMessage(
        id="msg-1",
        content=[ResponseOutputText(annotations=[], text=model.ANSWER, type="output_text")],
        role="assistant",
        status="completed",
        type="message",
    )
)


class Fake(Model):
    """Calls the tool that it is given once, then answers."""

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: ModelTracing,
        **_: Any,
    ) -> ModelResponse:
        """Answer when the gate is open."""
        with response_span(disabled=tracing.is_disabled()) as span, model.around[-1]():
            await model.gate.passed()
            response = CALLED if tools and (isinstance(input, str) or len(input) == 1) else ANSWERED
            span.span_data.response = response
            span.span_data.input = input
            return ModelResponse(output=response.output, usage=USED, response_id=response.id)

    def stream_response(self, *_: Any, **options: Any) -> AsyncIterator[Any]:
        """Nothing here streams."""
        raise NotImplementedError


CHAT = Fake()
AGENT: Any = Agent(name="solver", model=CHAT, tools=[function_tool(model.double)])


async def call() -> Any:
    """Ask the model, in a trace: outside of one, the SDK traces nothing."""
    with trace("call"):
        return await CHAT.get_response(None, model.PROMPT, ModelSettings(), [], None, [], ModelTracing.ENABLED)


async def run() -> Any:
    """Run the agent."""
    return await Runner.run(AGENT, model.PROMPT)


def agentops(provider: Any) -> None:
    """Instrument as `agentops.init` does."""
    target = "agentops.instrumentation.agentic.openai_agents.instrumentor:OpenAIAgentsInstrumentor"
    instrumented(named(target)(), provider)
