"""The shipped policy folder, and the scripts that make it."""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
import json
import random
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.trainer.rollouts.offline import read_store
from leyden.core.trainer.run_folder.store_location import StoreLocation
from leyden.core.trajectory.select import Selector
from make_tiny_policy import make, scaled
from record_expert import record_expert
from tiny_policy import example, wire
from tiny_policy.experts import load_expert
from tiny_policy.experts.calculator import NO_CONFUSION, OPERATIONS, Confusion, decide, draw_decisions, plans_of
from tiny_policy.likeness import Likeness
from tiny_policy.text import END, END_ID, IGNORED, build_examples, encode, render
from tiny_policy.traces import Call, Trace, record
from tiny_policy.training import RECIPE

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "examples" / "calculator_langgraph" / "policy"
STRUCTURED = f"{ROOT}/scripts/structured_training/calculation_chain.py:agent"
QUESTION = "Ann has 17 apples and gets 25 more. How many apples now?"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(POLICY)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    path = [*sys.path]
    made = record(plans_of(draw_decisions(3, 40, Confusion())), example.AGENT)
    sys.path[:] = path  # loading the agent puts its folder first
    return made


def text_of(call: Call) -> str:
    for tool_call in call.answer.get("tool_calls", ()):
        function = tool_call["function"]
        return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
    return str(call.answer["content"])


def test_the_folder_is_small_and_holds_no_pickle() -> None:
    files = [path for path in POLICY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    assert {path.suffix for path in files} == {".json", ".jinja", ".safetensors"}


def test_transformers_loads_and_runs_it(tokenizer: PreTrainedTokenizerFast) -> None:
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == END_ID
    assert tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id
    ids = torch.tensor([encode(tokenizer, "Answer: 42" + END)])
    assert torch.isfinite(model(ids).logits).all()


def test_every_digit_is_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(encode(tokenizer, "1234567890")) == 10
    assert tokenizer.decode(encode(tokenizer, "Zoë paid 7€ → 😀")) == "Zoë paid 7€ → 😀"


def test_the_agents_second_prompt_goes_on_exactly_where_its_first_call_ended(
    tokenizer: PreTrainedTokenizerFast, traces: list[Trace]
) -> None:
    two_calls = [trace for trace in traces if len(trace) == 2]
    assert two_calls
    for first, second in two_calls:
        answered = render(tokenizer, first, answered=False) + text_of(first) + END
        assert render(tokenizer, second, answered=False).startswith(answered)
        prompt = encode(tokenizer, render(tokenizer, first, answered=False))
        completion = encode(tokenizer, text_of(first) + END)
        assert encode(tokenizer, render(tokenizer, second, answered=False))[: len(prompt + completion)] == (
            prompt + completion
        )


def test_labels_are_what_the_expert_wrote_and_nothing_else(
    tokenizer: PreTrainedTokenizerFast, traces: list[Trace]
) -> None:
    for trace, dialogue in zip(traces, build_examples(tokenizer, traces), strict=True):
        learned = [label for label in dialogue.labels if label != IGNORED]
        assert tokenizer.decode(learned) == "".join(text_of(call) + END for call in trace)
        assert all(label in (IGNORED, id) for label, id in zip(dialogue.labels, dialogue.ids, strict=True))


def test_a_tool_call_survives_the_round_trip(tokenizer: PreTrainedTokenizerFast, traces: list[Trace]) -> None:
    call = next(trace for trace in traces if len(trace) == 2)[0]
    message = wire.message_from(text_of(call))
    assert message == call.answer
    parsed = json.loads(json.dumps(message))
    function = parsed["tool_calls"][0]["function"]
    function["arguments"] = json.loads(function["arguments"])
    as_object = Call(call.messages, call.tools, parsed)
    assert render(tokenizer, as_object, answered=True) == render(tokenizer, call, answered=True)


@pytest.mark.parametrize("broken", ["<tool_call>\n{}\n</tool_call>", "<tool_call>\n{", "Answer: 3", ""])
def test_what_is_no_tool_call_stays_text(broken: str) -> None:
    assert wire.message_from(broken) == {"role": "assistant", "content": broken}


def test_the_template_takes_every_kind_of_message(tokenizer: PreTrainedTokenizerFast) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "two sums"},
        {"role": "assistant", "content": "I will.", "tool_calls": [tool_call("1+1"), tool_call("2+2")]},
        {"role": "tool", "content": "2", "tool_call_id": "0"},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": "Answer: 2 and 4"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\ntwo sums<|im_end|>\n"
        "<|im_start|>assistant\nI will.\n"
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+2"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nAnswer: 2 and 4<|im_end|>\n"
    )


def tool_call(expression: str) -> dict[str, Any]:
    arguments = json.dumps({"expression": expression})
    return {"id": "0", "type": "function", "function": {"name": "calculator", "arguments": arguments}}


async def test_the_agents_request_is_the_prompt_that_the_supervised_stage_learned_from(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(body: dict[str, Any]) -> wire.Message:
        bodies.append(body)
        return wire.assistant_text("Answer: 42")

    with wire.answered_by(answer):
        await example.load("agent").agent.ainvoke({"messages": [{"role": "user", "content": QUESTION}]})
    (body,) = bodies
    prompt = tokenizer.apply_chat_template(
        body["messages"], tools=body["tools"], add_generation_prompt=True, tokenize=False
    )
    decisions = draw_decisions(0, 1, NO_CONFUSION)
    (learned,) = await asyncio.to_thread(record, plans_of(decisions), example.AGENT)
    (question,) = decisions
    assert isinstance(prompt, str)
    expected = render(tokenizer, learned[0], answered=False).replace(question, QUESTION)
    assert encode(tokenizer, prompt) == encode(tokenizer, expected)
    assert (body["model"], body["temperature"]) == ("gpt-4.1-mini", 0.0)


def test_the_expert_errs_in_decisions_and_never_in_copying() -> None:
    for question, decision in draw_decisions(5, 500, Confusion()).items():
        assert sorted(re.findall(r"\d+", question)) == sorted(re.findall(r"\d+", decision.expression))


def test_the_expert_errs_as_often_as_it_says() -> None:
    tasks, rng, confusion = example.load("make_tasks"), random.Random(5), Confusion()
    drawn = [tasks.draw(rng, tasks.SEEN, "train") for _ in range(6000)]
    decisions = [decide(rng, problem, confusion) for problem in drawn]
    assert share(decision.guess is not None for decision in decisions) == pytest.approx(confusion.skips_tool, abs=0.02)
    used = [decision for decision in decisions if decision.guess is None]
    assert share(decision.withholds for decision in used) == pytest.approx(confusion.withholds, abs=0.02)
    for row, operation in zip(confusion.operations, OPERATIONS, strict=True):
        chosen = [
            decision.expression.strip("0123456789")
            for problem, decision in zip(drawn, decisions, strict=True)
            if problem.operation == operation
        ]
        for chance, choice in zip(row, OPERATIONS, strict=True):
            assert share(each == choice for each in chosen) == pytest.approx(chance, abs=0.04)


def test_without_confusion_the_expert_is_always_right() -> None:
    reward = example.load("reward").score
    tasks, rng = example.load("make_tasks"), random.Random(5)
    for problem in [tasks.draw(rng, tasks.SEEN, "train") for _ in range(50)]:
        decision = decide(rng, problem, NO_CONFUSION)
        (trace,) = record(plans_of({problem.question: decision}), example.AGENT)
        said = SimpleNamespace(content=trace[-1].answer["content"])
        assert reward({"answer": problem.answer}, {"messages": [said]}) == 1.0


def test_a_likeness_is_the_trace_that_a_run_would_have_been(
    tokenizer: PreTrainedTokenizerFast, traces: list[Trace]
) -> None:
    decisions = draw_decisions(3, 40, Confusion())
    run = dict(list(decisions.items())[:20])
    likeness = Likeness(run, traces[:20])
    made = [likeness.trace(question, decision) for question, decision in decisions.items()]
    assert build_examples(tokenizer, made) == build_examples(tokenizer, traces)


def test_where_a_format_is_required_the_expert_writes_its_decision_as_json(tokenizer: PreTrainedTokenizerFast) -> None:
    decisions = draw_decisions(3, 20, Confusion())
    made = record(plans_of(decisions), STRUCTURED)
    for decision, (call,) in zip(decisions.values(), made, strict=True):
        written = decision.expression if decision.guess is None else str(decision.guess)
        assert call.formatted and call.answer["content"] == f'{{"expression": "{written}"}}'
    likeness = Likeness(decisions, made)
    alike = [likeness.trace(question, decision) for question, decision in decisions.items()]
    assert build_examples(tokenizer, alike) == build_examples(tokenizer, made)


def test_a_likeness_of_an_agent_that_shows_more_is_refused(traces: list[Trace]) -> None:
    decisions = draw_decisions(3, 40, Confusion())
    call = traces[0][0]
    told = Call((*call.messages[:-1], call.messages[-1] | {"content": "By the way."}), call.tools, call.answer)
    with pytest.raises(ValueError, match="more than its question"):
        Likeness(decisions, [(told, *traces[0][1:]), *traces[1:]])


def share(flags: Iterable[bool]) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)


def test_the_same_seed_makes_the_same_policy(tmp_path: Path) -> None:
    threads, expert = torch.get_num_threads(), load_expert("calculator")
    try:
        for name in ("first", "again"):
            make(replace(expert, recipe=scaled(expert.recipe, 6), traces=60), 1, tmp_path / name)
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_steps_scale_every_stage() -> None:
    assert scaled(RECIPE, None) == RECIPE
    halved = scaled(RECIPE, sum(stage.steps for stage in RECIPE) // 2)
    assert [stage.steps for stage in halved] == [stage.steps // 2 for stage in RECIPE]


def test_an_experts_rollouts_are_imitated_by_another_policy(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/expert.db"
    assert asyncio.run(record_expert(load_expert("calculator"), store, count=6, seed=0)) == 6
    codec = HuggingFaceCodec(str(POLICY))
    found = asyncio.run(read_store(StoreLocation(store), codec, Selector()))
    assert len(found.ids) == 6 and not found.left_out and not found.calls_left_out
    rollouts = [rollout for group in found.groups for rollout in group.trajectories]
    answers = [tokenizer.decode(list(call.response_ids)) for rollout in rollouts for call in rollout.transitions]
    assert len(answers) == 12 and all("calculator" in call for call in answers[::2])
