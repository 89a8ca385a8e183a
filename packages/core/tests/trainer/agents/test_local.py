import pytest

from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.trainer.agents.local import remote_agents, served_resources
from leyden.core.trainer.serving.address import RunAddress

ADDRESS = RunAddress(url="http://gateway", token="t")


def test_agents_get_the_gateway_in_place_of_an_endpoint_its_replicas_and_its_key() -> None:
    prompt = PromptTemplate(template="{a}")
    given = LLM(endpoint="http://a/v1", model="m", api_key="sk-1", replicas=("http://b/v1",))
    served = served_resources({"llm": given, "prompt": prompt}, ADDRESS, "policy")
    assert served == {"llm": LLM(endpoint="http://gateway", model="m"), "prompt": prompt}


@pytest.mark.parametrize(("given", "temperature"), [((), 1.0), ((0.7,), 0.7)])
def test_agents_get_an_endpoint_and_a_temperature_if_none_is_given(
    given: tuple[float, ...], temperature: float
) -> None:
    own = LLM(endpoint="http://gateway", model="policy", sampling_parameters={"temperature": temperature})
    assert served_resources({}, ADDRESS, "policy", *given) == {"main_llm": own}


@pytest.mark.parametrize(
    ("served", "start"),
    [
        (None, "`leyden run AGENT --server http://127.0.0.1:1`, with the same LEYDEN_RUN_TOKEN"),
        ("calc", "`leyden run AGENT --server URL --run calc`, with the URL and the token of its server"),
    ],
)
async def test_remote_agents_are_requested_where_they_attach(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, served: str | None, start: str
) -> None:
    monkeypatch.setenv("LEYDEN_RUN_TOKEN", "chosen")
    monkeypatch.delenv("LEYDEN_SERVED_RUN", raising=False)
    if served is not None:
        monkeypatch.setenv("LEYDEN_SERVED_RUN", served)
    async with remote_agents(RunAddress(url="http://127.0.0.1:1", token="t")):
        assert start in caplog.text
