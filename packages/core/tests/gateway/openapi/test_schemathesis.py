"""The gateway keeps what its OpenAPI page promises, whatever it is asked."""

import asyncio
from collections.abc import Iterator

import pytest

from fuzz.page import PageCheck
from leyden.core.testing.gateway_bench import GatewayBench

EXAMPLES = 8
"""For each operation, of data as the page wants them and of other data."""


@pytest.fixture
def bench() -> Iterator[GatewayBench]:
    bench = GatewayBench(lambda turns: "hello")
    bench.start()
    yield bench
    bench.stop()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_answer_is_as_the_page_says(bench: GatewayBench) -> None:
    attempt = asyncio.run(bench.attempt("a task"))
    check = PageCheck(bench.url, attempt.token, examples=EXAMPLES)
    counts = check.run()
    labels = {operation.label for operation in check.operations()}
    assert {label for label, _, _ in counts} == labels
    answered = {label for label, _, status in counts if status == 200}
    assert labels - answered == {label for label in labels if label.endswith("/cancel")}
    refused = {label for label, mode, status in counts if mode == "negative" and status >= 400}
    assert {label for label in labels if label.endswith(("/chat/completions", "/responses"))} <= refused
