"""The contract of replaced prompts fails for an agent that sees more than its own prompts."""

import uuid
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from leyden.core.testing.adapter_contract import API_KEY, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import PROVIDER, BenchTests
from leyden.core.testing.adapter_contract.visible import Visible, difference
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.tracing.spans.export import Recorder


@dataclass
class Answer:
    id: str
    created: float
    text: str
    usage: dict[str, int]


def test_only_ids_times_and_token_counts_may_differ() -> None:
    one, other = uuid.uuid4().hex, str(uuid.uuid4())
    answers = [Answer(f"chatcmpl-{key}", len(key), f"see {key}", {"total_tokens": len(key)}) for key in (one, other)]
    assert Visible().of(answers[0])[1] == {"id": "<1>", "text": "see <2>"}
    assert Visible().of([answers[0]]) == Visible().of([answers[1]])
    assert Visible().of([one, one]) != Visible().of([one, other])
    assert Visible().of(ValueError("a")) != Visible().of(TypeError("a"))
    assert Visible().of([Answer("a", 0, "b", {})]) != Visible().of([Answer("a", 0, "c", {})])


def test_the_first_difference_is_named_with_its_place() -> None:
    assert difference([{"a": [1, 2]}], [{"a": [1, 3]}]) == "[0].a[1]: 2 and 3"
    assert difference([1], [1, 2]) == " has 1 and 2 members"
    assert difference({"a": 1}, {}) == ".a: 1 and None"


class Counting(ReplacedPromptsContract):
    """Reads the number of the tokens in its prompt."""

    roles = frozenset({"system"})

    def __init__(self, *, calls: int = 1, counts: bool = False) -> None:
        self.calls, self.counts = calls, counts

    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        async with openai.AsyncOpenAI(base_url=PROVIDER, api_key=API_KEY, max_retries=0) as client:
            messages: Any = [{"role": "system", "content": "You listen."}, {"role": "user", "content": question}]
            for _ in range(self.calls):
                answer = await client.chat.completions.create(model="gpt", messages=messages)
                assert answer.usage is not None
                seen += [answer, answer.usage.prompt_tokens if self.counts else None]


@pytest.mark.integration
class TestReplacedPromptsContract(BenchTests):
    async def test_it_holds_for_an_agent_that_sees_its_own(self, bench: GatewayBench, recorder: Recorder) -> None:
        agent = Counting(calls=2)
        await agent.test_an_agent_sees_the_same_whether_its_prompts_are_replaced_or_not(bench, recorder, False)

    async def test_it_fails_for_an_agent_that_counts_tokens(self, bench: GatewayBench, recorder: Recorder) -> None:
        agent = Counting(counts=True)
        with pytest.raises(AssertionError, match=r"\[0\]\[1\]: \d+ and \d+"):
            await agent.test_an_agent_sees_the_same_whether_its_prompts_are_replaced_or_not(bench, recorder, False)
