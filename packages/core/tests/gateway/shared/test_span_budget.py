from pathlib import Path

import pytest

from leyden.core.data.production import ProductionSampling
from leyden.core.gateway.production.span_sampling import SpanSampler
from leyden.core.gateway.shared.folder import SharedFolder
from leyden.core.gateway.shared.span_budget import SharedSpanBudget, SpanBudget


@pytest.mark.parametrize("shared", [False, True])
def test_a_budget_counts_what_is_kept_in_a_minute(shared: bool, tmp_path: Path) -> None:
    budget = SharedSpanBudget(tmp_path / "spans") if shared else SpanBudget()
    assert budget.keep(1, 6, 10)
    assert not budget.keep(1, 5, 10)
    assert budget.keep(1, 4, 10)
    assert budget.keep(1, 9), "without a limit, spans are only counted"
    assert not budget.keep(1, 1, 19)
    assert budget.keep(2, 10, 10)


def test_workers_share_the_limit_of_a_minute(tmp_path: Path) -> None:
    sampling = ProductionSampling(max_span_per_minute=100, reward_threshold=1.0)
    folders = [SharedFolder(tmp_path, name) for name in ("worker-1", "worker-2")]
    samplers = [SpanSampler(sampling, clock=lambda: 600.0, shared=folder) for folder in folders]
    decisions = [samplers[n % 2].decide(f"ro-{n}", None, 10) for n in range(20)]
    assert decisions == ["base rate"] * 10 + ["dropped"] * 10
    assert samplers[0].decide("ro-20", 1.0, 10) == "high reward"
    for folder in folders:
        folder.close()
