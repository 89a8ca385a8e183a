import pytest

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.lightning_rl import LightningRL
from leyden.core.data.resources import LLM
from leyden.core.errors import UsageError
from leyden.core.testing.prompts.scripted import ScriptedPrompts
from leyden.core.trainer.config import RunConfig, endpoint_name
from leyden.core.trainer.serving.endpoint import (
    KEY,
    OPENAI,
    ModelEndpoint,
    check_model,
    openai_endpoint,
    read_model_endpoint,
)

URL = "https://models.example/v1"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", KEY):
        monkeypatch.delenv(name, raising=False)


def test_the_key_given_in_python_wins_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = ModelEndpoint(url=URL)
    assert endpoint.llm().api_key is None
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    assert endpoint.llm().api_key == "sk-usual"
    monkeypatch.setenv("MY_KEY", "sk-mine")
    assert ModelEndpoint(url=URL, key_env="MY_KEY").llm().api_key == "sk-mine"
    monkeypatch.setenv(KEY, "sk-of-the-parent")
    assert endpoint.llm().api_key == "sk-of-the-parent"
    assert endpoint.llm("sk-given").api_key == "sk-given"


def test_a_key_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="--api-key-env MY_KEY: this environment variable is not set"):
        ModelEndpoint(url=URL, key_env="MY_KEY").llm()


@pytest.mark.parametrize("url", ["models.example", "file:///etc/passwd", "https://models.example/v1?key=x"])
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        ModelEndpoint(url=url).open()


def test_options_without_an_endpoint_are_refused() -> None:
    assert read_model_endpoint([], None, None) is None
    assert read_model_endpoint([URL, "https://b/v1"], "m", None) == ModelEndpoint(
        url=URL, replicas=("https://b/v1",), model="m"
    )
    with pytest.raises(UsageError, match="--api-key-env belongs to an --endpoint"):
        read_model_endpoint([], None, "KEY")


def test_the_endpoint_of_an_llm_has_no_key() -> None:
    llm = LLM(endpoint=URL, model="m", api_key="sk-secret")
    assert ModelEndpoint.of(llm) == ModelEndpoint(url=URL, model="m")


@pytest.mark.parametrize(
    ("kind", "policy", "endpoint", "says"),
    [
        (LightningRL, False, True, "lightning_rl trains the weights of a policy"),
        (ScriptedPrompts, True, False, "scripted_prompts trains no weights"),
        (LightningRL, True, False, None),
        (ScriptedPrompts, False, True, None),
    ],
)
def test_an_algorithm_gets_what_it_can_work_with(
    kind: type[Algorithm], policy: bool, endpoint: bool, says: str | None
) -> None:
    if says is None:
        check_model(kind, policy=policy, endpoint=endpoint)
        return
    with pytest.raises(UsageError, match=says):
        check_model(kind, policy=policy, endpoint=endpoint)


def test_a_run_has_a_policy_or_an_endpoint() -> None:
    endpoint = ModelEndpoint(url=URL, model="m")
    config = RunConfig(name="r", endpoint=endpoint)
    assert (config.policies, config.answering, config.usual, config.has_names) == ({}, (), "policy", False)
    assert endpoint_name(config) == f"m {URL}"
    with pytest.raises(UsageError, match="no policy is given"):
        RunConfig(name="r")
    with pytest.raises(UsageError, match="a --policy, which it trains, or an --endpoint"):
        RunConfig(name="r", policy="p", endpoint=endpoint)
    with pytest.raises(UsageError, match="remove --deterministic, --frozen"):
        RunConfig(name="r", endpoint=endpoint, deterministic=True, frozen={"f": "p"})


def test_the_endpoint_of_openais_clients_is_known_if_they_could_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert openai_endpoint() is None
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert openai_endpoint() == ModelEndpoint(url=OPENAI)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{URL}/")
    assert openai_endpoint() == ModelEndpoint(url=URL)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert openai_endpoint() == ModelEndpoint(url=URL), "a server of one's own may need no key"
