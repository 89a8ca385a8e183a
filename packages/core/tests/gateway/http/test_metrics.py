import prometheus_client
from prometheus_client.parser import text_string_to_metric_families

from leyden.core.gateway.http.metrics import CONTENT_TYPE, GatewayMetrics
from leyden.core.gateway.limits.admission import AdmissionControl


def metrics(admission: AdmissionControl | None = None) -> GatewayMetrics:
    admission = admission or AdmissionControl()
    return GatewayMetrics(
        running=lambda: admission.running, waiting=lambda: admission.waiting, paused=lambda: float(admission.paused)
    )


def test_a_call_counts_where_it_belongs() -> None:
    counted = metrics()
    counted.call("chat", "policy", 200, 0.02, first_chunk=0.004)
    counted.tokens("policy", 1000, 200)
    counted.call("chat", "policy", 200, 3.0)
    counted.tokens("policy", 10, 1)
    counted.call("responses", "judge", 500, 700.0)
    values = counted.snapshot()
    assert values['leyden_gateway_calls_total{dialect="chat",policy="policy",status="200"}'] == 2
    assert values['leyden_gateway_calls_total{dialect="responses",policy="judge",status="500"}'] == 1
    assert values['leyden_gateway_tokens_total{policy="policy",kind="prompt"}'] == 1010
    assert values['leyden_gateway_tokens_total{policy="policy",kind="response"}'] == 201
    assert values['leyden_gateway_latency_seconds_count{dialect="chat"}'] == 2
    assert values['leyden_gateway_latency_seconds_sum{dialect="chat"}'] == 3.02
    assert values['leyden_gateway_latency_seconds_bucket{dialect="chat",le="0.025"}'] == 1
    assert values['leyden_gateway_latency_seconds_bucket{dialect="responses",le="600.0"}'] == 0
    assert values['leyden_gateway_latency_seconds_bucket{dialect="responses",le="+Inf"}'] == 1
    assert values['leyden_gateway_first_chunk_seconds_count{dialect="chat"}'] == 1


def test_refusals_records_and_versions_are_shown() -> None:
    counted = metrics()
    version = 3
    counted.serves("policy", lambda: version)
    counted.refused("overloaded")
    counted.refused("overloaded")
    counted.recorded(2)
    counted.recorded(1, kept=False)
    values = counted.snapshot()
    assert values['leyden_gateway_refused_total{reason="overloaded"}'] == 2
    assert values["leyden_gateway_recorded_spans_total"] == 2
    assert values["leyden_gateway_record_failures_total"] == 1
    assert values['leyden_gateway_policy_version{policy="policy"}'] == 3
    version = 4
    assert counted.snapshot()['leyden_gateway_policy_version{policy="policy"}'] == 4


async def test_the_gate_is_asked_when_somebody_looks() -> None:
    admission = AdmissionControl()
    counted = metrics(admission)
    names = ("leyden_gateway_running", "leyden_gateway_waiting", "leyden_gateway_paused")
    assert [counted.snapshot()[name] for name in names] == [0, 0, 0]
    with await admission.acquire("attempt"):
        admission.pause()
        assert [counted.snapshot()[name] for name in names] == [1, 0, 1]


def test_a_scraper_can_read_it_and_finds_every_number() -> None:
    counted = metrics()
    counted.call("chat", 'a "quoted"\npolicy', 200, 0.1)
    text = counted.render().decode()
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(text))
    assert all(family.name.startswith("leyden_gateway_") and family.documentation for family in families)
    seen = {sample.name: sample for family in families for sample in family.samples}
    assert {name.partition("{")[0] for name in counted.snapshot()} <= set(seen)
    assert seen["leyden_gateway_calls_total"].labels["policy"] == 'a "quoted"\npolicy'


def test_two_gateways_count_apart_and_neither_in_the_process_wide_registry() -> None:
    one, other = metrics(), metrics()
    one.recorded(5)
    assert other.snapshot()["leyden_gateway_recorded_spans_total"] == 0
    assert b"leyden" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)
