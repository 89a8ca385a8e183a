"""Real clients under Leyden, as foreign processes, and straight at their provider: they see the same."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from differences import differences
from exchanges import load, name_in
from known import KNOWN, Known, unknown
from observing import APART, CLIENTS, STRAIGHT, Observed, observe

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.span import Span
from leyden.core.testing.byte_codec import ByteCodec

EXCHANGES = load()
MADE = [(client, name) for client in CLIENTS for name in EXCHANGES if CLIENTS[client].can(EXCHANGES[name])]

UNREADABLE = ""
"""What was refused before it was read."""

Observe = Callable[[str], Observed]


@pytest.fixture(scope="module")
def observed() -> Observe:
    """What a client saw, each run once; skips the test where the client is not installed."""

    @cache
    def once(name: str) -> Observed:
        return observe(CLIENTS[name], {key: EXCHANGES[key] for key in EXCHANGES if (name, key) in MADE})

    def found(name: str) -> Observed:
        missing = CLIENTS[name].missing
        if missing is not None:
            assert os.environ.get("LEYDEN_CLIENTS") != "required", missing
            pytest.skip(missing)
        return once(name)

    return found


def compared(observation: Observed, exchange: str) -> list[str]:
    """Every difference of `exchange` between a setting and the provider."""
    found: list[str] = []
    for (setting, variant, name), seen in observation.seen.items():
        if name == exchange and setting != STRAIGHT:
            straight = observation.seen[STRAIGHT, variant, name]
            found += [f"{setting} {variant}: {line}" for line in differences(ordered(seen), ordered(straight))]
    return found


def ordered(seen: Mapping[str, Any]) -> Mapping[str, Any]:
    """The events of several choices one choice after the other: how they interleave is nobody's promise."""
    events = seen.get("events")
    if not events or "choices" not in events[0]:
        return seen
    place = {id(event): event["choices"][0]["index"] if event["choices"] else len(events) for event in events}
    return {**seen, "events": sorted(events, key=lambda event: place[id(event)])}


@pytest.mark.parametrize(("client", "exchange"), MADE)
def test_a_client_sees_what_it_would_see_straight_at_its_provider(
    client: str, exchange: str, observed: Observe
) -> None:
    observation = observed(client)
    made = {setting for setting, _, name in observation.seen if name == exchange}
    assert made == {STRAIGHT, *(CLIENTS[client].settings if exchange not in APART else ("foreign",))}
    assert unknown(exchange, compared(observation, exchange)) == []
    straight = [observation.seen[STRAIGHT, variant, exchange] for variant in observation.variants(exchange)]
    assert straight
    status = EXCHANGES[exchange].status
    if status == 200 and exchange != "cancel_timeout":
        assert [seen["error"] for seen in straight if seen.get("error")] == []
    if status != 200:
        assert all(str(status) in json.dumps(seen) for seen in straight), "a failure of the client's own"


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.why)
def test_a_known_difference_is_still_there(known: Known, observed: Observe) -> None:
    observation = observed(known.client)
    found = [(name, line) for name in EXCHANGES for line in compared(observation, name)]
    assert any(known.covers(name, line) for name, line in found)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_call_is_recorded_in_its_own_attempt(client: str, observed: Observe) -> None:
    observation = observed(client)
    for setting in CLIENTS[client].settings:
        made = Counter[str]()
        for place, _, name in observation.seen:
            if place == setting and name not in APART:
                made[name] += len(EXCHANGES[name].draws) or 1
        records = observation.records[setting]
        assert len(records) == made.total()
        read = Counter(exchange_of(span) for span in records)
        assert read - made == Counter({UNREADABLE: read[UNREADABLE]})


@pytest.mark.parametrize("client", CLIENTS)
def test_the_records_are_the_engines_own(client: str, observed: Observe) -> None:
    observation = observed(client)
    spans = [span for records in observation.records.values() for span in records]
    drawn = {
        str(span.attributes[semconv.CALL_ID]): ids_of(span) for span in spans if semconv.PROMPT_IDS in span.attributes
    }
    assert drawn == {record.request_id: record.response_ids for record in observation.log}


@pytest.mark.parametrize(("client", "exchange"), [(client, name) for client, name in MADE if "cancel" in name])
def test_a_call_that_the_client_breaks_off_is_recorded_as_such(client: str, exchange: str, observed: Observe) -> None:
    observation = observed(client)
    spans = [span for records in observation.records.values() for span in records if exchange_of(span) == exchange]
    assert spans
    for span in spans:
        assert span.attributes[semconv.NOT_TRAINED] == "client disconnected"
        whole, ids = ByteCodec().answer(EXCHANGES[exchange].draws[0].text), ids_of(span)
        assert len(ids) < len(whole), "the engine holds the answer's end back"
        assert ids == whole[: len(ids)]
        assert ids or exchange.endswith("timeout"), "only a client that waits by the clock can leave before any token"


def exchange_of(span: Span) -> str:
    messages = span.attributes.get(semconv.INPUT_MESSAGES)
    return UNREADABLE if messages is None else name_in(str(messages))


def ids_of(span: Span) -> list[int]:
    packed = span.attributes.get(semconv.RESPONSE_IDS, b"")
    assert isinstance(packed, bytes)
    return list(unpack_ids(packed))


def test_every_exchange_has_one_answer() -> None:
    for exchange in EXCHANGES.values():
        assert (exchange.answer is None) != (exchange.events is None)
        assert (exchange.events is not None) == (bool(exchange.request.get("stream")) and exchange.status == 200)
