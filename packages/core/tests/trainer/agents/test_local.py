from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.trainer.agents.local import served_resources
from leyden.core.trainer.serving.address import RunAddress

ADDRESS = RunAddress(url="http://gateway", token="t")


def test_agents_get_the_gateway_in_place_of_an_endpoint_its_replicas_and_its_key() -> None:
    prompt = PromptTemplate(template="{a}")
    given = LLM(endpoint="http://a/v1", model="m", api_key="sk-1", replicas=("http://b/v1",))
    served = served_resources({"llm": given, "prompt": prompt}, ADDRESS, "policy")
    assert served == {"llm": LLM(endpoint="http://gateway", model="m"), "prompt": prompt}


def test_agents_get_an_endpoint_if_none_is_given() -> None:
    assert served_resources({}, ADDRESS, "policy") == {"main_llm": LLM(endpoint="http://gateway", model="policy")}
