import pytest

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning.replaced import ReplacedName
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.testing import factories


def call(number: int, agent: str = "solver", parent_id: str | None = None) -> agl.Span:
    attributes: agl.Attributes = {
        semconv.CALL_ID: f"call-{number}",
        semconv.AGENT_NAME: agent,
        semconv.RESPONSE_ID: f"response-{number}",
        semconv.PROMPT_IDS: pack_ids([number, 7]),
        semconv.RESPONSE_IDS: pack_ids([8]),
        semconv.RESPONSE_LOGPROBS: pack_log_probs([-0.5]),
        semconv.INPUT_MESSAGES: '[{"role": "user", "content": "2+2?"}]',
        semconv.OUTPUT_MESSAGES: '[{"role": "assistant", "content": "4"}]',
    }
    at = float(number)
    return factories.span(
        attributes=attributes,
        sequence_id=number,
        span_id=f"{number:016x}",
        start_time=at,
        end_time=at + 0.5,
        parent_id=parent_id,
    )


def reward(value: float, at: float) -> agl.Span:
    return factories.span(semconv.REWARD, {semconv.REWARD_VALUE: value}, start_time=at, end_time=at, span_id="f" * 16)


def test_a_triplet_has_the_tokens_the_messages_and_the_reward_of_a_call() -> None:
    (made,) = agl.TracerTraceToTriplet().adapt([call(1), reward(0.75, 2.0)])
    assert isinstance(made, agl.Triplet)
    assert made.prompt == {"token_ids": [1, 7], "raw_content": [{"role": "user", "content": "2+2?"}]}
    assert made.response == {
        "token_ids": [8],
        "logprobs": [-0.5],
        "raw_content": [{"role": "assistant", "content": "4"}],
    }
    assert made.reward == 0.75
    assert made.metadata == {"response_id": "response-1", "agent_name": "solver", "node": None}


def test_a_reward_goes_to_the_latest_call_that_has_ended_and_has_none() -> None:
    spans = [reward(9.0, 0.5), call(1), reward(0.1, 1.8), call(2), call(3), reward(0.3, 3.6), reward(0.2, 3.7)]
    assert [one.reward for one in agl.TracerTraceToTriplet()(spans)] == [0.1, 0.2, 0.3]
    assert [one.reward for one in agl.LlmProxyTraceToTriplet().adapt([call(1), reward(1.0, 1.2)])] == [None]


def test_calls_are_chosen_by_agent_and_those_of_reward_functions_are_left_out() -> None:
    judged = factories.span("leyden.reward_function", span_id="aa" * 8, start_time=2.0)
    spans = [call(1), judged, call(2, parent_id="aa" * 8), call(3, agent="critic")]
    ids = [one.metadata["response_id"] for one in agl.TracerTraceToTriplet(agent_match="^solver$").adapt(spans)]
    assert ids == ["response-1"]
    assert len(agl.TracerTraceToTriplet(exclude_llm_call_in_reward=False).adapt(spans)) == 3


def test_a_call_whose_tokens_are_unknown_has_empty_lists() -> None:
    (made,) = agl.TracerTraceToTriplet().adapt([factories.span(attributes={semconv.CALL_ID: "call"})])
    assert (made.prompt["token_ids"], made.response["token_ids"], made.response["logprobs"]) == ([], [], [])


def test_an_adapter_of_ones_own_is_called() -> None:
    class Names(agl.TraceAdapter[list[str]]):
        def adapt(self, source: object, /) -> list[str]:
            assert isinstance(source, list)
            return [span.name for span in source]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    assert Names()([reward(1.0, 0.0)]) == [semconv.REWARD]
    with pytest.raises(NotImplementedError, match="adapt"):
        agl.OtelTraceAdapter[str]().adapt([])


def test_options_that_change_nothing_are_refused() -> None:
    with pytest.raises(ReplacedName, match="agent_match="):
        agl.TracerTraceToTriplet(llm_call_match="chat")
    with pytest.raises(ReplacedName, match="latest call"):
        agl.TracerTraceToTriplet(reward_match="first_sibling")
