"""Programs in the form of the original's tutorials, over shipped fakes: only the import line differs."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning.replaced import REPLACED, ReplacedName
from leyden.core.data import semconv
from leyden.core.errors import UsageError
from leyden.core.testing.servers.chat_endpoint import ChatEndpoint, chat_endpoint
from leyden.core.trainer.trainer import Trainer

POLICY = Path(__file__).parents[4] / "examples/calculator_langgraph/policy"
PROMPTS = ["Answer: {question}", "Answer in one word: {question}"]


@agl.rollout
def answering(task: str, prompt_template: agl.PromptTemplate) -> float:
    from openai import OpenAI

    client = OpenAI()
    prompt = prompt_template.format(question=task)
    answer = client.chat.completions.create(model="gpt-4.1-nano", messages=[{"role": "user", "content": prompt}])
    return 1.0 if answer.choices[0].message.content == "Blue" else 0.0


class Emitting(agl.LitAgent[dict[str, Any]]):
    def __init__(self) -> None:
        super().__init__()

    def rollout(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        template = resources["prompt"]
        assert isinstance(template, agl.PromptTemplate)
        agl.emit_message(template.format(word=task["word"]))
        agl.emit_reward(len(task["word"]) / 10)


async def find_best(
    store: agl.LightningStore, train_dataset: agl.Dataset[str], adapter: agl.TracerTraceToTriplet
) -> None:
    """An algorithm that tries prompts one after the other, and adds the best one last."""
    scores: dict[str, float] = {}
    for prompt in PROMPTS:
        update = await store.add_resources({"prompt": agl.PromptTemplate(template=prompt, engine="f-string")})
        rollout = await store.enqueue_rollout(train_dataset[0], mode="train", resources_id=update.resources_id)
        (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=30.0)
        assert ended.status == "succeeded", ended
        spans = await store.query_spans(rollout.rollout_id)
        reward = agl.find_final_reward(spans)
        assert reward is not None
        (triplet,) = adapter.adapt(spans)
        assert triplet.response["raw_content"][0]["content"]
        scores[prompt] = reward
    best = max(scores, key=lambda prompt: scores[prompt])
    await store.add_resources({"best": agl.PromptTemplate(template=best, engine="f-string")})


def answer(body: dict[str, Any]) -> str:
    return "Blue" if "one word" in body["messages"][-1]["content"] else "It is blue because of scattering."


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    with chat_endpoint(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
        yield server


@pytest.mark.integration
def test_an_algorithm_of_ones_own_finds_the_best_prompt(provider: ChatEndpoint) -> None:
    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(algorithm=agl.algo(find_best), n_workers=2, store=store, tracer=agl.AgentOpsTracer())
    trainer.fit(answering, train_dataset=["Which colour has the sky?"])
    latest = asyncio.run(store.get_latest_resources())
    assert latest is not None
    best = latest.resources["best"]
    assert isinstance(best, agl.PromptTemplate)
    assert best.template == PROMPTS[1]
    assert [call["body"]["model"] for call in provider.seen] == ["gpt-4.1-nano"] * 2


@pytest.mark.integration
def test_calls_of_the_algorithm_itself_go_to_its_provider(provider: ChatEndpoint) -> None:
    @agl.algo
    async def judging(store: agl.LightningStore) -> None:
        from openai import AsyncOpenAI

        rollout = await store.enqueue_rollout("Which colour has the sky?")
        asked: Any = [{"role": "user", "content": "Is one word enough?"}]
        await AsyncOpenAI().chat.completions.create(model="gpt-5-mini", messages=asked)
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=30.0)
        calls = [span for span in await store.query_spans(rollout.rollout_id) if semconv.CALL_ID in span.attributes]
        assert len(calls) == 1

    prompt = agl.PromptTemplate(template=PROMPTS[0], engine="f-string")
    agl.Trainer(algorithm=judging, initial_resources={"prompt": prompt}).fit(answering)
    assert sorted(call["body"]["model"] for call in provider.seen) == ["gpt-4.1-nano", "gpt-5-mini"]


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_algorithm_reads_the_tokens_of_a_policy() -> None:
    """As in the tutorial on fine-tuning: collect rollouts of a model, and keep the best as examples."""
    kept: list[agl.Triplet] = []

    @agl.llm_rollout
    def short(task: str, llm: agl.LLM) -> float:
        from openai import OpenAI

        client = OpenAI(base_url=llm.get_base_url(), api_key="unused")
        asked: Any = [{"role": "user", "content": task}]
        answer = client.chat.completions.create(model=llm.model, messages=asked, max_tokens=4)
        return 1 / (1 + len(answer.choices[0].message.content or ""))

    @agl.algo
    async def collect(
        store: agl.LightningStore, train_dataset: agl.Dataset[str], adapter: agl.TracerTraceToTriplet
    ) -> None:
        rollouts = [await store.enqueue_rollout(task, mode="train") for task in train_dataset]
        await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts], timeout=60.0)
        for rollout in rollouts:
            kept.extend(adapter.adapt(await store.query_spans(rollout.rollout_id)))

    agl.Trainer(algorithm=collect, policy=str(POLICY), n_runners=2).fit(short, ["2 + 3?", "4 + 4?"])
    assert len(kept) == 2
    for triplet in kept:
        assert triplet.prompt["token_ids"]
        assert 0 < len(triplet.response["token_ids"]) == len(triplet.response["logprobs"]) <= 4
        assert triplet.reward is not None


@pytest.mark.integration
async def test_runner_and_algorithm_share_only_a_server(provider: ChatEndpoint) -> None:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore())
    await server.start()
    store, other = agl.LightningStoreClient(server.endpoint), agl.LightningStoreClient(server.endpoint)
    runner, stop = agl.LitAgentRunner[str](agl.OtelTracer()), threading.Event()
    try:
        with runner.run_context(agent=answering, store=other):
            running = asyncio.create_task(runner.iter(event=stop))
            await find_best(store, ["Which colour has the sky?"], agl.TracerTraceToTriplet())
            stop.set()
            await running
        latest = await store.get_latest_resources()
        assert latest is not None
        assert list(latest.resources) == ["best"]
    finally:
        await store.close()
        await other.close()
        await server.stop()


@pytest.mark.integration
async def test_a_runner_takes_one_step_with_hooks() -> None:
    ended: list[str] = []

    class Watch(agl.Hook):
        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
            ended.extend(span.name for span in spans)

    store, runner = agl.InMemoryLightningStore(), agl.LitAgentRunner[dict[str, Any]](agl.OtelTracer())
    prompt = agl.PromptTemplate(template="Say {word}", engine="f-string")
    with runner.run_context(agent=Emitting(), store=store, hooks=[Watch()]):
        rollout = await runner.step({"word": "hello"}, resources={"prompt": prompt}, mode="train")
    assert (rollout.status, rollout.mode) == ("succeeded", "train")
    spans = await store.query_spans(rollout.rollout_id)
    assert agl.find_final_reward(spans) == 0.5
    assert agl.get_message_value(spans[0]) == "Say hello"
    assert agl.SpanNames.REWARD in ended

    await store.enqueue_rollout({"word": "queued"})
    with runner.run_context(agent=Emitting(), store=store), pytest.raises(UsageError, match="use iter"):
        await runner.step({"word": "hello"})
    with pytest.raises(UsageError, match="run_context"):
        await runner.iter()


@pytest.mark.integration
def test_the_baseline_runs_every_task_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    store = agl.InMemoryLightningStore()
    prompt = agl.PromptTemplate(template="Say {word}", engine="f-string")
    trainer = agl.Trainer(
        algorithm=agl.Baseline(n_epochs=2, span_verbosity="key_values"),
        store=store,
        n_runners=4,
        initial_resources={"prompt": prompt},
    )
    with caplog.at_level(logging.INFO, "leyden.core.agent_lightning"):
        trainer.dev(Emitting(), [{"word": "a"}, {"word": "ab"}], [{"word": "abc"}])
    rollouts = asyncio.run(store.query_rollouts())
    assert sorted(one.mode or "" for one in rollouts) == ["train"] * 2 + ["val"] * 4
    assert {one.status for one in rollouts} == {"succeeded"}
    assert "succeeded, reward 0.3" in caplog.text
    assert "Say abc" in caplog.text


@pytest.mark.integration
def test_a_synchronous_algorithm_runs_beside_the_agent() -> None:
    class Two(agl.Algorithm):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            asyncio.run(self._run(train_dataset))

        async def _run(self, tasks: Any) -> None:
            assert self.get_initial_resources() is not None
            rollouts = [await self.get_store().enqueue_rollout(task) for task in tasks]
            await self.get_store().wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts], timeout=30.0)

    store = agl.InMemoryLightningStore()
    prompt = agl.PromptTemplate(template="Say {word}", engine="f-string")
    trainer = agl.Trainer(algorithm=Two(), store=store, initial_resources={"prompt": prompt})
    trainer.fit(Emitting(), [{"word": "a"}, {"word": "b"}])
    assert {one.status for one in asyncio.run(store.query_rollouts())} == {"succeeded"}


@pytest.mark.integration
def test_a_dry_run_answers_from_the_endpoint_of_openai(provider: ChatEndpoint) -> None:
    prompt = agl.PromptTemplate(template=PROMPTS[1], engine="f-string")
    trainer = agl.Trainer(n_workers=1, initial_resources={"main_prompt": prompt}, quiet=True)
    (result,) = trainer.dev(answering, ["Which colour has the sky?"])
    assert result.rollout.status == "succeeded"
    ((_, spans),) = result.attempts
    assert agl.find_final_reward(spans) == 1.0


@pytest.mark.integration
def test_an_error_of_the_algorithm_ends_the_run() -> None:
    @agl.algo
    async def broken(store: agl.LightningStore) -> None:
        await store.enqueue_rollout("task")
        raise RuntimeError("no idea left")

    with pytest.raises(RuntimeError, match="no idea left"):
        agl.Trainer(algorithm=broken).fit(Emitting())


@pytest.mark.integration
def test_an_llm_that_would_be_ignored_ends_the_run() -> None:
    @agl.algo
    async def serving(store: agl.LightningStore) -> None:
        await store.add_resources({"main_llm": agl.LLM(endpoint="http://127.0.0.1:9/v1", model="other")})
        await asyncio.sleep(30)

    with pytest.raises(UsageError, match="initial_resources"):
        agl.Trainer(algorithm=serving).fit(Emitting())


@pytest.mark.parametrize("name", [*REPLACED])
def test_arguments_that_have_no_meaning_are_refused(name: str) -> None:
    with pytest.raises(ReplacedName, match=rf"^Trainer\({name}=\) of Agent Lightning has no meaning in Leyden: "):
        agl.Trainer(**cast("Any", {name: 1}))


def test_arguments_are_mapped_or_refused() -> None:
    match = agl.TracerTraceToTriplet(agent_match="write|rewrite")
    trainer = agl.Trainer(policy="p", adapter=match, n_workers=3, hooks=agl.Hook())
    assert (trainer.n_runners, trainer.n_workers, trainer.selection.get("agent_match")) == (3, 1, "write|rewrite")
    assert len(trainer.hooks) == 1
    assert agl.Trainer(policy="p", adapter={"agent_match": "sql"}).selection.get("agent_match") == "sql"
    assert agl.Trainer(policy="p", triplet_exporter=agl.LlmProxyTraceToTriplet()).n_runners == 64
    assert agl.Trainer(policy="p", adapter=agl.TraceToMessages(), steps=3).steps == 3
    selected: Any = agl.Trainer(policy="p", adapter={"agent_match": "sql", "span_match": "chat"})
    assert (selected.selection.get("span_match"), selected.adapter.agent_match) == ("chat", "sql")
    with pytest.raises(UsageError, match=r"adapter= takes agent_match, .*, not span_match"):
        agl.Trainer(algorithm=agl.Baseline(), adapter={"span_match": "chat"})

    class Own(agl.TraceAdapter[int]):
        """An adapter that Leyden's algorithms cannot read."""

    with pytest.raises(ReplacedName, match="select="):
        agl.Trainer(policy="p", adapter=Own())
    with pytest.raises(ReplacedName, match="tracer="):
        agl.Trainer(policy="p", tracer="agentops")  # pyright: ignore[reportArgumentType]  # as in the original
    memory = agl.InMemoryLightningStore()
    assert agl.Trainer(policy="p", store=memory).store is memory
    with pytest.raises(UsageError, match="takes the store itself, from open_store, not its URI"):
        agl.Trainer(algorithm=agl.algo(find_best), store="memory://")
    with pytest.raises(UsageError, match="older name of n_runners"):
        agl.Trainer(policy="p", n_runners=1, n_workers=1)
    with pytest.raises(UsageError, match="n_runners is 0"):
        agl.Trainer(policy="p", n_runners=0)
    with pytest.raises(UsageError, match=r"Trainer\(steps=\) has no effect"):
        agl.Trainer(algorithm=agl.Baseline(), steps=3)
    with pytest.raises(ReplacedName, match="object itself"):
        agl.Trainer(algorithm="verl")  # pyright: ignore[reportArgumentType]  # as in the original


def test_runs_are_checked_and_resumed_with_algorithms_that_have_them() -> None:
    trainer = agl.Trainer(algorithm=agl.Baseline())
    with pytest.raises(UsageError, match=r"Trainer\.check works with Leyden's algorithms"):
        trainer.check(Emitting(), ["task"])
    with pytest.raises(UsageError, match=r"Trainer\.resume works"):
        trainer.resume(Emitting(), "run")


def test_the_algorithm_and_the_adapter_of_the_sql_tutorial_are_taken() -> None:
    config = {
        "algorithm": {"adv_estimator": "grpo"},
        "data": {"train_batch_size": 32, "max_prompt_length": 4096},
        "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-Coder-1.5B-Instruct"}, "rollout": {"n": 4}},
        "trainer": {"n_gpus_per_node": 1, "total_epochs": 2},
    }
    trainer = agl.Trainer(n_runners=10, algorithm=agl.VERL(config), adapter={"agent_match": "write"})
    assert (trainer.algorithm.named_policy, trainer.n_runners) == ("Qwen/Qwen2.5-Coder-1.5B-Instruct", 10)
    assert trainer.timeout_seconds == 1200
    assert agl.Trainer(algorithm=agl.VERL(config), timeout_seconds=60).timeout_seconds == 60
    assert agl.Trainer(policy="p").timeout_seconds == 120
    assert trainer.selection == {"agent_match": "write"}
    assert isinstance(trainer.adapter, agl.TracerTraceToTriplet)
    assert trainer.adapter.agent_match == "write"
    unselected: Any = {"agent_match": None, "repair_hierarchy": True}
    other: Any = agl.Trainer(algorithm=agl.VERL(config), adapter=unselected)
    assert (other.selection, other.triplet_exporter.agent_match) == ({}, None)


def test_tracers_hand_out_callbacks_and_hold_no_spans() -> None:
    for tracer in (agl.OtelTracer(), agl.AgentOpsTracer(), agl.LitAgent[str]().tracer):
        with pytest.raises(UsageError, match="on_rollout_end receives the spans"):
            tracer.get_last_trace()
    assert agl.OtelTracer().get_langchain_handler() is not None


def test_algorithms_of_functions_say_what_they_cannot_be_given() -> None:
    with pytest.raises(UsageError, match="no 'budget' is given"):
        agl.algo(cast("Any", lambda store, budget: None))  # pyright: ignore[reportUnknownLambdaType]

    def three(**_: Any) -> int:
        return 3

    made = agl.algo(three)
    assert made() == 3
    with pytest.raises(TypeError, match="no parameter train_dataset"):
        made.run(["task"])
    with pytest.raises(UsageError, match="no store yet"):
        agl.Algorithm().get_store()


def test_agents_are_made_by_decorators_and_classes() -> None:
    @agl.llm_rollout
    def one(task: str, llm: agl.LLM) -> float:
        return 1.0

    @agl.llm_rollout(strip_proxy=False)
    async def two(task: str, llm: agl.ProxyLLM) -> float:
        return 2.0

    @agl.prompt_rollout
    def three(task: str, prompt_template: agl.PromptTemplate) -> float:
        return 3.0

    assert (one.is_async(), two.is_async(), three.is_async()) == (False, True, False)
    with pytest.raises(UsageError, match="no parameter 'llm'"):
        agl.llm_rollout(three.function)
    with pytest.raises(ReplacedName, match="a Hook with on_rollout_end"):
        type("Old", (agl.LitAgent,), {"on_rollout_end": print})
    with pytest.raises(ReplacedName, match="constructor"):
        _ = agl.LitAgent[str]().trainer


def test_agents_that_are_named_as_trained_are_warned_of_as_in_the_original(caplog: pytest.LogCaptureFixture) -> None:
    class Writer(agl.LitAgent[str]):
        def __init__(self, trained_agents: str | None = r"write") -> None:
            super().__init__(trained_agents=trained_agents)

    assert Writer().trained_agents == "write"
    assert "Writer: trained_agents='write' has no effect: Trainer(adapter={'agent_match': ...})" in caplog.text
    caplog.clear()
    assert Writer(None).trained_agents is None
    assert not caplog.text


def test_loggers_are_those_of_leyden(capsys: pytest.CaptureFixture[str]) -> None:
    logger = agl.configure_logger(logging.DEBUG)
    try:
        assert (logger.name, logger.level) == ("leyden", logging.DEBUG)
        assert agl.setup_module_logging("WARNING", name="leyden.core.store").level == logging.WARNING
        agl.setup_logging("INFO", submodule_levels={"leyden.core.store": "INFO"})
        with pytest.raises(ReplacedName, match=r"logging\.config"):
            agl.setup_logging("INFO", files="run.log")
        with pytest.raises(ReplacedName, match="Leyden's loggers are 'leyden'"):
            agl.setup_module_logging(name="agentlightning")
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
        logging.getLogger("leyden.core.store").setLevel(logging.NOTSET)


def test_the_log_of_a_program_is_shown_with_that_of_leyden(capsys: pytest.CaptureFixture[str]) -> None:
    logger, older = logging.getLogger("sql_agent_of_a_test"), logging.getLogger("older_agent_of_a_test")
    try:
        agl.setup_logging("INFO", apply_to=[logger.name])
        agl.setup_logging("INFO", apply_to=[logger.name])
        assert agl.configure_logger(name=older.name) is older
        logger.info("question: %s", "how many")
        logger.debug("not shown")
        older.info("rewritten")
        shown = capsys.readouterr().err
        assert shown.count("sql_agent_of_a_test) question: how many\n") == 1
        assert shown.count("older_agent_of_a_test) rewritten\n") == 1
        assert "not shown" not in shown
    finally:
        own = logging.getLogger("leyden")
        for handler in list(own.handlers):
            own.removeHandler(handler)
        own.setLevel(logging.NOTSET)
        own.propagate = True


class Own:
    """Not an algorithm."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"algorithm": agl.Baseline},
            "algorithm= was given the class Baseline: give an object, such as Baseline()",
        ),
        ({"algorithm": agl.APO}, "algorithm= was given the class APO: give an object"),
        ({"algorithm": Own()}, "algorithm= takes an algorithm, such as LightningRL(), not <"),
        ({"initial_resources": [1]}, "initial_resources= takes resources by name"),
        ({"n_runners": "4"}, "n_runners= takes a whole number, not '4'"),
        ({"n_workers": 2.5}, "n_runners= takes a whole number, not 2.5"),
        ({"steps": "9"}, "steps= takes a whole number, not '9'"),
        ({"group_size": True}, "group_size= takes a whole number, not True"),
    ],
)
@pytest.mark.parametrize("kind", [agl.Trainer, Trainer])
def test_arguments_of_another_type_are_refused_in_one_line(kind: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as raised:
        kind(**given)
    found = str(raised.value).replace("n_workers=", "n_runners=")  # the older name, in Leyden's own Trainer another one
    assert says in found and "\n" not in found


def test_numbers_of_other_libraries_are_whole_numbers() -> None:
    assert Trainer(n_runners=cast("Any", np.int64(4)), steps=cast("Any", np.int32(3))).n_runners == 4


def test_a_search_has_no_best_prompt_before_it_ran() -> None:
    with pytest.raises(UsageError, match=r"there is no best prompt yet: Trainer\.fit finds it"):
        agl.APO().get_best_prompt()
