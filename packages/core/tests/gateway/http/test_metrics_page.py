import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from leyden.core.engine.base import Engine
from leyden.core.gateway.http import metrics_page
from leyden.core.gateway.http.metrics import GatewayMetrics
from leyden.core.gateway.http.metrics_page import MetricsPage

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %d
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",replica="its own"} 12.0
# HELP vllm:seconds Time.
# TYPE vllm:seconds histogram
vllm:seconds_bucket{le="1.0"} 1.0
vllm:seconds_bucket{le="+Inf"} 2.0
vllm:seconds_count 2.0
vllm:seconds_sum 3.5
"""


class Servers:
    """An engine, as far as this page asks it."""

    def __init__(self, pages: Mapping[str, bytes | None]) -> None:
        self.pages = dict(pages)
        self.requests = 0

    async def measures(self) -> Mapping[str, bytes | None]:
        self.requests += 1
        return self.pages


def own() -> GatewayMetrics:
    return GatewayMetrics(running=lambda: 3, waiting=lambda: 0, paused=lambda: 0)


def page(engines: Mapping[str, Servers], **other_metrics: Any) -> MetricsPage:
    return MetricsPage(own(), cast("Mapping[str, Engine]", engines), other_metrics)


def values(text: bytes) -> dict[str, float]:
    """Every number by its name and labels; the page must be whole: each family is there once, and named once."""
    types = re.findall(rb"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(types) == len(set(types))
    families = list(text_string_to_metric_families(text.decode()))
    found = [
        (sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
    ]
    assert len(found) == len(dict(found))
    return dict(found)


async def test_servers_of_all_engines_are_told_apart() -> None:
    engines = {"policy": Servers({"a:1": VLLM % 1, "b:2": VLLM % 2}), "judge": Servers({"server": VLLM % 3})}
    text = await page(engines).render()
    values_by_name = values(text)
    of = "vllm:num_requests_running engine=0 model_name=m policy={} replica={}"
    assert [values_by_name[of.format(*one)] for one in (("policy", "a:1"), ("policy", "b:2"), ("judge", "server"))] == [
        1,
        2,
        3,
    ]
    assert values_by_name["vllm:prompt_tokens_total engine=0 exported_replica=its own policy=policy replica=b:2"] == 12
    assert values_by_name["vllm:seconds_bucket le=+Inf policy=judge replica=server"] == 2
    assert b"# TYPE vllm:prompt_tokens_total counter" in text
    assert values_by_name["leyden_gateway_running"] == 3
    assert values_by_name["leyden_up part=engine policy=policy replica=a:1"] == 1


@pytest.mark.parametrize("body", [None, b"\xff", b'vllm:x{a="b} 1\n', b"<html>busy</html>"])
async def test_a_server_that_does_not_answer_is_down_and_the_page_stays(body: bytes | None) -> None:
    values_by_name = values(await page({"policy": Servers({"a:1": body, "b:2": VLLM % 2})}).render())
    assert values_by_name["leyden_up part=engine policy=policy replica=a:1"] == 0
    assert values_by_name["leyden_up part=engine policy=policy replica=b:2"] == 1
    assert values_by_name["vllm:num_requests_running engine=0 model_name=m policy=policy replica=b:2"] == 2
    assert not any("replica=a:1" in name for name in values_by_name if not name.startswith("leyden_up"))


async def test_what_lies_beside_is_shown_and_what_fails_is_down() -> None:
    async def store() -> Iterable[Metric]:
        return [CounterMetricFamily("leyden_store_spans", "Spans.", value=7)]

    async def run() -> Iterable[Metric]:
        raise OSError("the disk is gone")

    values_by_name = values(await page({}, store=store, run=run).render())
    assert values_by_name["leyden_store_spans_total"] == 7
    assert (values_by_name["leyden_up part=store"], values_by_name["leyden_up part=run"]) == (1, 0)


async def test_families_of_one_name_are_one() -> None:
    async def one() -> Iterable[Metric]:
        return [GaugeMetricFamily("process_open_fds", "Files.", value=1)]

    page_of_server = b"# HELP process_open_fds Files.\n# TYPE process_open_fds gauge\nprocess_open_fds 9\n"
    values_by_name = values(await page({"policy": Servers({"server": page_of_server})}, run=one).render())
    assert values_by_name["process_open_fds"] == 1
    assert values_by_name["process_open_fds policy=policy replica=server"] == 9


async def test_many_scrapers_cost_the_servers_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Servers({"server": VLLM % 1})
    shown = page({"policy": engine})
    first = await shown.render()
    assert await shown.render() == first
    assert engine.requests == 1
    monkeypatch.setattr(metrics_page, "CACHE_SECONDS", 0.0)
    engine.pages["server"] = None
    assert values(await shown.render())["leyden_up part=engine policy=policy replica=server"] == 0
