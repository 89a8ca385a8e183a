"""A store's server keeps what its OpenAPI page promises, whatever it is asked."""

from typing import Any

import pytest
import requests
from hypothesis import given, seed, settings
from hypothesis.errors import Unsatisfiable

from fuzz.page import CHECKS, EVERY_HEALTH_CHECK, MODES, PATIENCE_SECONDS, SCHEMATHESIS
from leyden.core.store.http import server as server_module
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.servers.store_server import TOKEN, StoreServer

EXAMPLES = 8
"""For each operation, of data as the page wants them and of other data."""
MAY_FAIL = {
    *("/start_attempt", "/update_rollout", "/update_attempt"),
    *("/get_next_span_sequence_id", "/add_span", "/drop_spans"),
    *("/add_run", "/update_run", "/rewind_run", "/add_metrics", "/update_policy_version"),
}
"""Nearly all that is made up names something that is not there, or cannot be a name."""


@pytest.mark.long
def test_every_answer_is_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LONGEST_WAIT", 0.01)
    answered: set[str] = set()
    with StoreServer() as server, requests.Session() as session:
        url = server.add(MemoryStore())
        page = requests.get(f"{url}/openapi.json", timeout=PATIENCE_SECONDS).json()
        del page["paths"]["/find_attempt"]  # answers a pair, whose schema schemathesis cannot read
        operations: list[Any] = [found.ok() for found in SCHEMATHESIS.openapi.from_dict(page).get_all_operations()]
        for operation in operations:
            for mode in MODES:
                strategy = operation.as_strategy(generation_mode=mode)

                @seed(0)
                @settings(max_examples=EXAMPLES, database=None, suppress_health_check=EVERY_HEALTH_CHECK)
                @given(strategy)
                def ask(case: Any) -> None:
                    headers = {"authorization": f"Bearer {TOKEN}"}
                    answer = case.call(base_url=url, session=session, headers=headers, timeout=PATIENCE_SECONDS)
                    case.validate_response(answer, checks=CHECKS)
                    if answer.status_code == 200:
                        answered.add(case.operation.path)

                try:
                    ask()
                except Unsatisfiable:
                    if mode.is_positive:
                        raise  # of what has no parameters, nothing else can be made
    assert answered and {operation.path for operation in operations} - answered <= MAY_FAIL
