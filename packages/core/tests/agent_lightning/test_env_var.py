"""The variables of Agent Lightning are read as there; those that give a process a part are refused."""

from typing import Any

import pytest

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning.env_var import check_roles
from leyden.core.agent_lightning.replaced import ReplacedName

ROLE, MANAGED, PORT = (
    agl.LightningEnvVar.AGL_CURRENT_ROLE,
    agl.LightningEnvVar.AGL_MANAGED_STORE,
    agl.LightningEnvVar.AGL_SERVER_PORT,
)


def test_an_override_wins_over_the_variable_and_the_variable_over_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agl.resolve_str_env_var(ROLE) is None
    assert agl.resolve_bool_env_var(MANAGED, fallback=True) is True
    assert agl.resolve_int_env_var(PORT, fallback=4747) == 4747
    monkeypatch.setenv(ROLE.value, "algorithm")
    monkeypatch.setenv(MANAGED.value, " Off ")
    monkeypatch.setenv(PORT.value, "9999")
    assert agl.resolve_str_env_var(ROLE, fallback="both") == "algorithm"
    assert agl.resolve_bool_env_var(MANAGED, fallback=True) is False
    assert agl.resolve_int_env_var(PORT) == 9999
    assert agl.resolve_str_env_var(ROLE, "runner") == "runner"
    assert agl.resolve_bool_env_var(MANAGED, True) is True
    assert agl.resolve_int_env_var(PORT, 1) == 1


def test_a_value_that_is_none_of_the_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MANAGED.value, "perhaps")
    monkeypatch.setenv(PORT.value, "http")
    with pytest.raises(ValueError, match="AGL_MANAGED_STORE is 'perhaps'; it must be one of 1, true"):
        agl.resolve_bool_env_var(MANAGED)
    with pytest.raises(ValueError, match="AGL_SERVER_PORT is 'http'; it must be a whole number"):
        agl.resolve_int_env_var(PORT)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AGL_CURRENT_ROLE", "runner", r"^AGL_CURRENT_ROLE=runner of .*: leave it unset: .*LitAgentRunner"),
        ("AGL_CURRENT_ROLE", "algorithm", "leyden run"),
        ("AGL_SERVER_HOST", "0.0.0.0", "leyden store"),
        ("AGL_SERVER_PORT", "9999", "leyden store"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "dev"])
def test_a_trainer_refuses_the_part_of_a_process(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str, method: str
) -> None:
    monkeypatch.setenv(name, value)
    trainer: Any = agl.Trainer(algorithm=agl.Baseline())
    with pytest.raises(ReplacedName, match=said):
        getattr(trainer, method)(print, ["task"])


def test_both_parts_and_a_store_that_nobody_wraps_are_what_leyden_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROLE.value, "both")
    monkeypatch.setenv(MANAGED.value, "0")
    check_roles()
