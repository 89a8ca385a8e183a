import logging
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI

from leyden.core.algorithm.base import RunDefaults
from leyden.core.algorithm.language_model import ModelOptions
from leyden.core.algorithm.prompts.apo import APO
from leyden.core.algorithm.prompts.apo_options import APOConfig
from leyden.core.algorithm.prompts.apo_original import REFLECTION_KEY
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.errors import UsageError
from leyden.core.trainer.trainer import Trainer

URL = "https://models.example/v1"
CLIENT = AsyncOpenAI(base_url=URL, api_key="sk-of-the-client")


def options(algorithm: APO) -> APOConfig:
    assert isinstance(algorithm.config, APOConfig)
    return algorithm.config


def test_the_clients_endpoint_is_that_of_both_models_and_its_key_stays_in_memory() -> None:
    made = APO(CLIENT)
    config = options(made)
    assert config.reflection == ModelOptions(endpoint=URL, model="gpt-5-mini", key_env=REFLECTION_KEY)
    assert config.edit == ModelOptions(endpoint=URL, model="gpt-4.1-mini", key_env=REFLECTION_KEY)
    assert made.keys == {REFLECTION_KEY: "sk-of-the-client"}
    assert "sk-of-the-client" not in str(made.settings())
    assert [model.temperature for model in config.models()] == [1.0, 1.0]
    assert config.validation == "val"
    assert made.run_defaults == RunDefaults(steps=3, timeout_seconds=3600.0)


def test_a_key_of_the_environment_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-client")
    made = APO(CLIENT)
    assert (made.keys, options(made).reflection.key_env) == ({}, None)


def test_every_keyword_of_the_original_has_its_option(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("<prompt> <rollouts>")
    (tmp_path / "e.txt").write_text("<prompt> <gradient>")
    made = APO(
        async_openai_client=CLIENT,
        gradient_model="g",
        apply_edit_model="e",
        diversity_temperature=0.5,
        gradient_batch_size=3,
        val_batch_size=5,
        beam_width=6,
        branch_factor=7,
        beam_rounds=8,
        rollout_batch_timeout=9.0,
        run_initial_validation=False,
        gradient_prompt_files=[tmp_path / "g.txt"],
        apply_edit_prompt_files=[str(tmp_path / "e.txt")],
    )
    config = options(made)
    assert (config.reflection.model, config.edit and config.edit.model) == ("g", "e")
    assert (config.minibatch, config.worst, config.best, config.validation_batch) == (3, 2, 1, 5)
    assert (config.beam_width, config.branch_factor, config.initial_validation) == (6, 7, False)
    assert [model.temperature for model in config.models()] == [0.5, 0.5]
    assert (config.gradient_templates(), config.edit_templates()) == (["<prompt> <rollouts>"], ["<prompt> <gradient>"])
    trainer = Trainer(algorithm=made)
    assert (trainer.steps, trainer.timeout_seconds) == (8, 9.0)
    given = Trainer(algorithm=made, steps=2, timeout_seconds=3.0)
    assert (given.steps, given.timeout_seconds) == (2, 3.0)
    usual = Trainer()
    assert (usual.steps, usual.timeout_seconds) == (25, 120.0)


def test_one_rollout_for_a_gradient_is_enough() -> None:
    config = options(APO(CLIENT, gradient_batch_size=1))
    assert (config.minibatch, config.worst, config.best) == (1, 1, 0)


def test_the_settings_make_the_same_algorithm_again() -> None:
    made = APO[dict[str, str]](CLIENT, beam_width=2)
    assert make_algorithm(made.reference(), made.settings()).config == made.config


def test_litellm_calls_models_of_providers() -> None:
    config = options(APO(use_litellm=True, gradient_model="anthropic/claude-sonnet-4-5"))
    assert config.reflection == ModelOptions(endpoint="anthropic/claude-sonnet-4-5")
    assert config.edit == ModelOptions(endpoint="openai/gpt-4.1-mini")


def test_a_trace_of_poml_is_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        APO(CLIENT, _poml_trace=True)
    assert "_poml_trace has no effect" in caplog.text


def test_leydens_own_options_are_taken_as_they_are() -> None:
    assert options(APO()) == APOConfig()
    assert options(APO(APOConfig(beam_width=2))).beam_width == 2


@pytest.mark.parametrize(
    ("given", "keywords", "says"),
    [
        (None, {"beam_width": 2}, "APO needs an AsyncOpenAI client as its first argument"),
        ("client", {}, "APO takes an AsyncOpenAI client with a base URL and a key, or an APOConfig, not str"),
        (CLIENT, {"beam_widht": 2}, "APO has no argument beam_widht.*beam_width"),
        (CLIENT, {"beam_width": 0}, "beam_width must be at least 1, not 0"),
        (APOConfig(), {"beam_width": 2}, "APO takes an APOConfig alone, or keywords of the original: beam_width"),
        (CLIENT, {"gradient_prompt_files": ["own.poml"]}, r"own\.poml: POML is not supported"),
        (None, {"use_litellm": True, "gradient_model": "gpt-5"}, "write the model as provider/model, as openai/gpt-5"),
        (
            AsyncAzureOpenAI(azure_endpoint="https://x.example", api_key="k", api_version="1"),
            {},
            "APO cannot call the endpoint of an AsyncAzureOpenAI",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(given: Any, keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        APO(given, **keywords)
    assert "\n" not in str(refused.value)
