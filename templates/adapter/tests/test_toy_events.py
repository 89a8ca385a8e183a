"""What the contract cannot know: the tree of this framework's own things, and what it tells a foreign backend."""

import pytest

import toy_agents
from leyden.core.data import semconv
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.span_tape import SpanTape
from leyden_toy import ToyInstrumentor


@pytest.mark.parametrize("asked", [True, False], ids=["content asked for", "structure only"])
async def test_a_team_its_members_and_their_calls_form_one_tree(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", str(asked).lower())
    tape, bench = SpanTape(), GatewayBench(lambda turns: _double(7) if len(turns) == 2 else "fine")
    bench.start()
    ToyInstrumentor().instrument(tracer_provider=tape.provider)
    try:
        attempt = await bench.attempt("x")
        url = f"{bench.url}/a/{attempt.token}/v1"
        await toy_agents.Team("pair", [toy_agents.Agent("solver", url, "sk-nobody", [twice])]).run("go")
    finally:
        ToyInstrumentor().uninstrument()
        bench.stop()
    assert tape.tree() == [
        "invoke_workflow pair",
        "  invoke_agent solver",
        "    chat gpt-4.1-mini",
        "    execute_tool twice",
        "    chat gpt-4.1-mini",
    ]
    assert tape.attribute("execute_tool twice", semconv.TOOL_ARGUMENTS) == ('{"number": 7}' if asked else None)
    assert tape.attribute("execute_tool twice", semconv.TOOL_RESULT) == ("14" if asked else None)


def twice(number: int) -> int:
    """Double a number."""
    return 2 * number


def _double(number: int) -> str:
    return f'<tool_call>\n{{"name": "twice", "arguments": {{"number": {number}}}}}\n</tool_call>'
