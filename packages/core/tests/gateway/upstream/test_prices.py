"""What calls cost, held against LiteLLM's own table of models."""

import sys

import pytest

from leyden.core.data.resources import LLM
from leyden.core.gateway.upstream import litellm_library
from leyden.core.gateway.upstream.litellm_library import library
from leyden.core.gateway.upstream.prices import PriceList


def of(endpoint: str) -> PriceList:
    return PriceList(LLM(endpoint=endpoint, model=""))


@pytest.mark.parametrize(
    ("endpoint", "model"),
    [
        ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("anthropic", "anthropic/claude-sonnet-4-5"),
        ("https://api.openai.com/v1", "gpt-4.1-mini"),
    ],
)
def test_a_providers_call_costs_its_tokens(endpoint: str, model: str) -> None:
    found = of(endpoint)
    assert not found.unknown
    listed = library().model_cost[model.removeprefix("anthropic/")]
    expected = 1000 * listed["input_cost_per_token"] + 100 * listed["output_cost_per_token"]
    assert found.cost((model,), 1000, 100) == pytest.approx(expected)
    assert found.cost(("a-model-of-tomorrow", model), 1000, 100) == pytest.approx(expected)


def test_what_has_no_price_is_unknown_and_never_0() -> None:
    assert of("https://api.openai.com/v1").cost(("a-model-of-tomorrow",), 1000, 100) is None
    assert of("https://api.openai.com/v1").cost((), 1000, 100) is None
    assert of("ollama/llama3").cost(("llama3",), 1000, 100) is None
    own = of("http://127.0.0.1:8000/v1")
    assert own.cost(("gpt-4.1-mini",), 1000, 100) is None, "a server of this name may be anyone's"
    assert own.unknown == "no price list is known for this endpoint"
    assert PriceList(None).unknown == "a policy answers"


def test_without_litellm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.setattr(litellm_library, "find_spec", _find_nothing)
    found = of("https://api.openai.com/v1")
    assert found.unknown == (
        "the price list is part of LiteLLM, which is not installed: pip install 'leyden-core[providers]'"
    )
    assert found.cost(("gpt-4.1-mini",), 1, 1) is None


def _find_nothing(name: str) -> None:
    """Find no module, as where the extra is not installed."""
