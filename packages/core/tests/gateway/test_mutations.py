"""A short campaign of broken requests; `scripts/fuzz_gateway.py` is the long one."""

from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign import CONCURRENCY, campaign
from fuzz.mutations import request
from fuzz.wire import Answer, fault


@pytest.mark.parametrize(
    "bodies",
    [
        pytest.param(600, marks=pytest.mark.integration),
        pytest.param(1500, marks=[pytest.mark.long, pytest.mark.campaign]),
    ],
)
async def test_no_broken_request_breaks_the_gateway(tmp_path: Path, bodies: int) -> None:
    found = await campaign(tmp_path, bodies, seed=0)
    assert found.faults == []
    assert (found.unrecorded, found.tracebacks, found.leaks) == (0, 0, [])
    assert sum(found.statuses.values()) == bodies
    # 431 has a test of its own: a client that still sends its head may lose the response
    assert {200, 400, 404, 405, 408, 413, 415} <= set(found.statuses)
    assert len(found.accepted) > bodies / 12
    assert len(found.memory) > CONCURRENCY


def test_the_requests_of_a_seed_are_always_the_same() -> None:
    again = [request(3, number) for number in range(100)]
    assert [request(3, number) for number in range(100)] == again
    assert [request(4, number) for number in range(100)] != again


def test_a_campaign_tells_a_wrong_answer_from_a_right_one() -> None:
    valid_request = request(0, 0)
    error = b'{"error":{"message":"","type":"","param":null,"code":null}}'
    assert fault(valid_request, Answer(400, {}, error)) is None
    for answer in (
        Answer(500, {}, error),
        Answer(400, {}, b"no"),
        Answer(400, {}, b'{"error":{}}'),
        Answer(301, {}, b""),
    ):
        assert fault(valid_request, answer) is not None
    assert fault(replace(valid_request, framed=True), Answer(0, {}, b"")) is not None
    assert fault(replace(valid_request, framed=False), Answer(0, {}, b"")) is None
