"""Which tokens a pool and its workers have, and what a claim without an attempt's token comes to."""

from typing import Any

import pytest

from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.workers.pool import worker_prefix
from leyden.core.store.http.access import Access, WorkerCaller, machine_name, new_machine, worker_token
from leyden.core.testing.running import NO_GATEWAY, error_of, run_one

ACCESS = Access("opens-the-store")


def test_the_names_of_workers_begin_with_their_machines() -> None:
    token = new_machine(ACCESS)
    name = machine_name(token)
    assert worker_prefix(token, None) == name
    assert worker_prefix(token, "node") == f"{name}node-"
    assert ACCESS.holder(worker_token(token, f"{name}node-1")) == WorkerCaller(f"{name}node-1")
    assert machine_name(new_machine(ACCESS)) != name


def test_without_a_machine_pools_name_themselves() -> None:
    assert worker_prefix("opens-the-store", "node") == "worker-node-"
    assert worker_prefix("opens-the-store", None) != worker_prefix("opens-the-store", None)


async def test_a_claim_without_a_token_that_no_key_makes_is_a_failure_of_leyden() -> None:
    def unreached(task: Any) -> str:
        return "unreached"

    ended, _ = await run_one(unreached, key=None)
    assert (ended.status, error_of(ended)["kind"]) == ("failed", "leyden")
    assert "store_app(attempt_token=...)" in error_of(ended)["message"]


def test_an_empty_key_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="signing key is empty"):
        RunnerConfig(worker_id="w", gateway_url=NO_GATEWAY, key=b"")
