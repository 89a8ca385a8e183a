"""`opentelemetry-instrument python app.py`, on applications that know nothing of us, as processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from observing import ENVIRONMENTS, why_missing

from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.testing.adapter_contract.shared import ContractModel, is_served
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.servers.otlp_sink import OtlpSink, otlp_sink
from leyden.core.tracing.spans.export import CONTENT

TOOL = '''
def double(number: int) -> int:
    """Double a number."""
    return 2 * number
'''

APPS = {
    "langchain": TOOL
    + """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

agent = create_agent(ChatOpenAI(model="gpt-4.1-mini"), [double], name="solver")
print(agent.invoke({"messages": [("user", "double 7")]})["messages"][-1].text)
""",
    "autogen": TOOL
    + """
import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main():
    client = OpenAIChatCompletionClient(model="gpt-4.1-mini")
    agent = AssistantAgent("solver", client, tools=[double], reflect_on_tool_use=True)
    result = await agent.run(task="double 7")
    print(result.messages[-1].to_text())


asyncio.run(main())
""",
    "openai_agents": TOOL
    + """
from agents import Agent, Runner, function_tool

agent = Agent(name="solver", model="gpt-4.1-mini", tools=[function_tool(double)])
print(Runner.run_sync(agent, "double 7").final_output)
""",
    "crewai": TOOL
    + """
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

solver = Agent(
    role="solver",
    goal="double numbers",
    backstory="You double.",
    tools=[tool("double")(double)],
    llm=LLM(model="openai/gpt-4.1-mini"),
)
task = Task(description="double 7", expected_output="a number", agent=solver)
print(Crew(agents=[solver], tasks=[task]).kickoff())
""",
}

CHAIN = """
from langchain_core.runnables import RunnableLambda

print(f"It is {RunnableLambda(lambda number: 2 * number, name='solver').invoke(7)}.")
"""
"""Calls no model, and starts sooner."""
ALONE = ",".join(f"leyden_{name}" for name in APPS if name != "langchain")
"""Where all that matters is how the SDK is set up, the other frameworks need not be loaded."""

KEY, CAPTURE_TOKEN = "sk-the-apps-own", "captures-only"
NOBODY = "http://127.0.0.1:9"
INSTALLED = {entry.name for entry in entry_points(group="opentelemetry_instrumentor")}
FRAMEWORKS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(f"leyden_{name}" not in INSTALLED, reason=f"the adapter for {name} is not installed"),
    )
    for name in APPS
]
LANGCHAIN = [
    "invoke_agent solver",
    "  node model",
    "    chat gpt-4.1-mini",
    "  node tools",
    "    execute_tool double",
    "  node model",
    "    chat gpt-4.1-mini",
]
OWN_TRACING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

own = TracerProvider()
own.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(own)
"""
CONFIGURATOR = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


class Configurator:
    def configure(self, **kwargs):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        trace.set_tracer_provider(provider)
"""

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
def bench() -> Iterator[GatewayBench]:
    """What answers: as the provider, or as a gateway that captures."""
    bench = GatewayBench(ContractModel(), capture_token=CAPTURE_TOKEN)
    bench.start()
    yield bench
    bench.stop()


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as sink:
        yield sink


@pytest.fixture
def provider(bench: GatewayBench) -> str:
    """An OpenAI-compatible base URL."""
    return f"{bench.url}/a/{asyncio.run(bench.attempt('x')).token}/v1"


def run(folder: Path, code: str, base_url: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run an application under `opentelemetry-instrument`; it must answer."""
    app = folder / "app.py"
    app.write_text(code)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEYDEN_"))}
    environment = {
        **clean,
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": base_url,
        "HTTPS_PROXY": NOBODY,  # nothing else leaves this machine
        "NO_PROXY": "127.0.0.1,localhost",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "HOME": str(folder),
        **({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ALONE} if code.endswith(CHAIN) else {}),
        **variables,
    }
    command = [str(Path(sys.executable).parent / "opentelemetry-instrument"), sys.executable, str(app)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "It is 14." in done.stdout
    return done


def to(sink: OtlpSink) -> dict[str, str]:
    """The environment that exports there."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def printed(output: str) -> list[dict[str, Any]]:
    """The spans that a console exporter printed among other lines."""
    found: list[dict[str, Any]] = []
    decoder, at = json.JSONDecoder(), 0
    while (at := output.find("{\n", at)) >= 0:
        span, at = decoder.raw_decode(output, at)
        found.append(span)
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_app_gives_one_tree_without_content_and_in_production_a_rollout_with_tokens(
    framework: str, tmp_path: Path, bench: GatewayBench, sink: OtlpSink
) -> None:
    capturing = {"LEYDEN_CAPTURE": "production", "LEYDEN_GATEWAY_URL": bench.url}
    done = run(tmp_path, APPS[framework], NOBODY, **to(sink), **capturing, LEYDEN_CAPTURE_TOKEN=CAPTURE_TOKEN)
    assert "Not captured" not in done.stderr
    check_tree(framework, sink)
    if framework == "langchain":
        assert sink.tree() == LANGCHAIN
    told = bytes(sink.raw)
    assert not any(content in told for content in (b"double 7", b"It is 14", b'"number"', KEY.encode()))

    [rollout] = asyncio.run(bench.store.query_rollouts()).items
    assert isinstance(rollout, AttemptedRollout)
    assert (rollout.status, rollout.metadata["capture"]) == ("succeeded", "production")
    assert rollout.attempt.metadata == {"capture": "complete"}
    stored = asyncio.run(bench.store.query_spans(rollout.rollout_id)).items
    calls = [span for span in stored if is_served(span)]
    assert len(calls) == len(bench.log) == 2
    structure = {span.span_id for span in stored if semconv.FRAMEWORK in span.attributes}
    assert structure == {span.span_id for span in sink.spans if semconv.FRAMEWORK in span.attributes}
    assert all(span.attributes[semconv.RESPONSE_IDS] and span.attributes[semconv.PROMPT_IDS] for span in calls)
    assert [span.attributes.get(semconv.AGENT_NAME) for span in calls] == ["solver", "solver"]
    assert {span.parent_id for span in calls} <= {span.span_id for span in sink.spans}  # one tree, here and there


def check_tree(framework: str, sink: OtlpSink) -> None:
    """Our spans are one tree, with the tool below its agent."""
    ours = {span.span_id: span for span in sink.spans if semconv.FRAMEWORK in span.attributes}
    assert {span.attributes[semconv.FRAMEWORK] for span in ours.values()} == {framework}
    assert len({span.trace_id for span in ours.values()}) == 1
    assert len([span for span in ours.values() if span.parent_id not in ours]) == 1
    [tool] = [span for span in ours.values() if span.name == "execute_tool double"]
    above = [tool]
    while (parent := ours.get(above[-1].parent_id or "")) is not None:
        above.append(parent)
    agents = [span.attributes.get(semconv.AGENT_NAME) for span in above if span.name == "invoke_agent solver"]
    assert agents == ["solver"]
    assert tool.attributes[semconv.TOOL_NAME] == "double"


def test_content_goes_out_when_it_is_asked_for(tmp_path: Path, provider: str, sink: OtlpSink) -> None:
    run(tmp_path, APPS["langchain"], provider, **to(sink), **{CONTENT: "true"})
    [tool] = [span for span in sink.spans if span.name == "execute_tool double"]
    assert json.loads(tool.attributes[semconv.TOOL_ARGUMENTS]) == {"number": 7}
    assert "14" in tool.attributes[semconv.TOOL_RESULT]
    assert KEY.encode() not in sink.raw


def test_a_gateway_that_is_down_is_not_noticed(tmp_path: Path, provider: str, bench: GatewayBench) -> None:
    capturing = {"LEYDEN_CAPTURE": "production", "LEYDEN_GATEWAY_URL": NOBODY, "LEYDEN_CAPTURE_TOKEN": "t"}
    done = run(tmp_path, APPS["langchain"], provider, **capturing)
    assert "Not captured at http://127.0.0.1:9" in done.stderr
    assert len(bench.log) == 2  # the app's own provider answered


@pytest.mark.parametrize("instrumentor", ["openinference", "openllmetry"])
def test_another_makers_instrumentor_beside_ours_doubles_and_loses_nothing(
    instrumentor: str, tmp_path: Path, bench: GatewayBench, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is `langchain`, as `make clients` installs it."""
    packages = ENVIRONMENTS / instrumentor
    if (missing := why_missing(packages)) is not None:
        assert os.environ.get("LEYDEN_CLIENTS") != "required", missing
        pytest.skip(missing)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    with otlp_sink() as alone:
        disabled = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "leyden_langchain"}
        run(tmp_path, APPS["langchain"], provider, **to(alone), **disabled)
    assert names_of(alone), f"{instrumentor} makes spans"
    capturing = {"LEYDEN_CAPTURE": "production", "LEYDEN_GATEWAY_URL": bench.url, "LEYDEN_CAPTURE_TOKEN": CAPTURE_TOKEN}
    with otlp_sink() as together:
        run(tmp_path, APPS["langchain"], NOBODY, **to(together), **capturing)
    assert names_of(together) == names_of(alone) + Counter(line.strip() for line in LANGCHAIN)
    check_tree("langchain", together)
    [rollout] = [one for one in asyncio.run(bench.store.query_rollouts()).items if one.metadata]
    calls = [span for span in asyncio.run(bench.store.query_spans(rollout.rollout_id)).items if is_served(span)]
    chats = {span.span_id for span in together.spans if span.name == LANGCHAIN[2].strip()}
    assert {span.parent_id for span in calls} == chats
    assert len(calls) == 2


def names_of(sink: OtlpSink) -> Counter[str]:
    return Counter(span.name for span in sink.spans)


def test_spans_go_to_the_console(tmp_path: Path) -> None:
    done = run(tmp_path, CHAIN, NOBODY, OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="shop")
    [span] = printed(done.stdout)
    assert span["name"] == "invoke_agent solver"
    assert span["resource"]["attributes"]["service.name"] == "shop"


def test_an_instrumentor_that_is_disabled_records_nothing(tmp_path: Path, sink: OtlpSink) -> None:
    run(tmp_path, CHAIN, NOBODY, **to(sink), OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=f"{ALONE}, leyden_langchain")
    assert not sink.spans


def test_an_app_that_sets_tracing_up_itself_keeps_it(tmp_path: Path) -> None:
    done = run(tmp_path, OWN_TRACING + CHAIN, NOBODY, OTEL_TRACES_EXPORTER="none")
    assert [span["name"] for span in printed(done.stdout)].count("invoke_agent solver") == 1
    assert "Overriding" not in done.stderr


def test_an_apps_own_provider_takes_the_place_of_the_environments(tmp_path: Path, sink: OtlpSink) -> None:
    again = "trace.set_tracer_provider(TracerProvider())\nassert trace.get_tracer_provider() == own\n"
    done = run(tmp_path, OWN_TRACING + again + CHAIN, NOBODY, **to(sink))
    assert [span["name"] for span in printed(done.stdout)].count("invoke_agent solver") == 1
    assert not sink.spans
    assert done.stderr.count("Overriding of current TracerProvider is not allowed") == 1  # the second time


def test_another_configurator_comes_first(tmp_path: Path, sink: OtlpSink) -> None:
    """As opentelemetry-distro's does, which has an entry point of its own."""
    (tmp_path / "other_configurator.py").write_text(CONFIGURATOR)
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[opentelemetry_configurator]\nother = other_configurator:Configurator\n")
    done = run(tmp_path, CHAIN, NOBODY, **to(sink))
    assert [span["name"] for span in printed(done.stdout)].count("invoke_agent solver") == 1
    assert not sink.spans
    assert "not loaded" not in done.stderr and "Overriding" not in done.stderr


def test_an_exporter_that_is_not_there_is_a_line_in_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, CHAIN, NOBODY, OTEL_TRACES_EXPORTER="smoke")
    assert "No spans are exported: unknown exporter 'smoke'; installed exporters: console" in done.stderr
    assert "Traceback" not in done.stderr
