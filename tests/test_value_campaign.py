"""A short value campaign through every store, and at both ends of HTTP and OTLP."""

import asyncio

import pytest

from kills.store_backends import MISSING
from value_campaign import BACKENDS, run


def test_raw_requests_of_every_kind_are_answered() -> None:
    counted: list[int] = []
    happened, wrong = asyncio.run(run("requests", 600, 2, counted.append))
    assert not any(wrong.values()), wrong
    assert happened["values"] >= 600 and sum(counted) > 0
    assert happened["spans there at the end"] > 10
    assert min(happened["answered 200"], happened["answered 400"]) > 20


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_of_every_kind_come_through(backend: str) -> None:
    if (reason := MISSING.get(backend, lambda: None)()) is not None:
        pytest.skip(reason)
    happened, wrong = asyncio.run(run(backend, 1_500, 3, lambda more: None))
    assert not any(wrong.values()), wrong
    assert happened["values"] >= 1_500 and happened["spans there at the end"] > 100
    assert backend == "requests" or happened["blocking"] > 0
