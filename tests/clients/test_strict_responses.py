"""The strict reader itself must be able to fail."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from drivers.strict_responses import Surprise, read_response, read_stream
from exchanges import load

EXCHANGES = load()
Events = list[dict[str, Any]]


def stream(name: str = "responses_reasoning_stream") -> Events:
    found = EXCHANGES[name].events
    assert found is not None
    return copy.deepcopy(found)


@pytest.mark.parametrize(
    "name", [name for name, one in EXCHANGES.items() if one.endpoint == "/responses" and one.events]
)
def test_every_recorded_stream_is_read(name: str) -> None:
    assert read_stream(stream(name))["output"]


@pytest.mark.parametrize(
    "name", [name for name, one in EXCHANGES.items() if name.startswith("responses") and one.answer]
)
def test_every_recorded_answer_is_read(name: str) -> None:
    exchange = EXCHANGES[name]
    assert exchange.answer is not None
    if exchange.status == 200:
        assert read_response(exchange.answer)["output"]


def without(index: int) -> Callable[[Events], object]:
    def remove(events: Events) -> None:
        del events[index]
        for number, event in enumerate(events):
            event["sequence_number"] = number

    return remove


def swapped(one: int, other: int) -> Callable[[Events], object]:
    def swap(events: Events) -> None:
        events[one], events[other] = events[other], events[one]
        for number, event in enumerate(events):
            event["sequence_number"] = number

    return swap


def test_a_stream_without_one_of_its_events_is_refused() -> None:
    for index in range(len(stream())):
        events = stream()
        without(index)(events)
        with pytest.raises(Surprise):
            read_stream(events)


CHANGES: list[Callable[[Events], object]] = [
    lambda events: events[-1]["response"].update(usage=None),
    lambda events: events[-1]["response"]["usage"].update(output_tokens=None),
    lambda events: events[-1]["response"]["usage"]["output_tokens_details"].update(reasoning_tokens=None),
    lambda events: events[-1]["response"]["usage"].update(total_tokens=1),
    lambda events: events[-1]["response"].update(status="in_progress"),
    lambda events: events[-1]["response"].update(surprise=1),
    lambda events: events[-1]["response"].update(output=[]),
    lambda events: events[2].update(sequence_number=7),
    lambda events: events[2].update(type="response.output_item.begun"),
    lambda events: events[2]["item"].update(type="thought"),
    lambda events: events[4].update(item_id="rs_other"),
    lambda events: events[4].update(output_index=1),
    lambda events: events[4].update(delta=""),
    lambda events: events.append(copy.deepcopy(events[-1]) | {"sequence_number": len(events)}),
    swapped(3, 4),
    swapped(0, 1),
    swapped(6, 7),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_with_a_surprise_is_refused(change: Callable[[Events], object]) -> None:
    events = stream()
    read_stream(events)
    change(events)
    with pytest.raises(Surprise):
        read_stream(events)
