"""Environment variables of Agent Lightning, for programs that read them.

Leyden follows none of them. `Trainer` refuses those that would give its process a part or an address (`check_roles`).
A store is always used as it is given, which is `AGL_MANAGED_STORE=0`.
"""

import os
from enum import Enum

from leyden.core.agent_lightning.replaced import refuse


class LightningEnvVar(Enum):
    """Names of the variables."""

    AGL_EMITTER_DEBUG = "AGL_EMITTER_DEBUG"
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    AGL_SERVER_PORT = "AGL_SERVER_PORT"


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_SERVER = "Trainer(store=open_store(...)) uses a store that others reach, and `leyden store` serves one"
_REFUSED = {
    LightningEnvVar.AGL_SERVER_HOST: _SERVER,
    LightningEnvVar.AGL_SERVER_PORT: _SERVER,
}
_ROLE = (
    "leave it unset: Trainer trains and runs the agent; `leyden run` and Trainer(runners=RunnerPlacement(...)) run "
    "agents on other machines, and LitAgentRunner works on the queue of a store"
)


def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: bool | None = None
) -> bool | None:
    """Return `override`, else the variable as a truth value, else `fallback`; raises ValueError for another value."""
    if override is not None or (value := os.getenv(env_var.value)) is None:
        return fallback if override is None else override
    if value.strip().lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"{env_var.value} is {value!r}; it must be one of {', '.join((*_TRUE, *_FALSE))}")
    return value.strip().lower() in _TRUE


def resolve_int_env_var(
    env_var: LightningEnvVar, override: int | None = None, fallback: int | None = None
) -> int | None:
    """Return `override`, else the variable as a whole number, else `fallback`; raises ValueError for another value."""
    if override is not None or (value := os.getenv(env_var.value)) is None:
        return fallback if override is None else override
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{env_var.value} is {value!r}; it must be a whole number") from None


def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: str | None = None
) -> str | None:
    """Return `override`, else the variable, else `fallback`."""
    return os.getenv(env_var.value, fallback) if override is None else override


def check_roles() -> None:
    """Raise ReplacedName for variables that give this process a part, or an address, that `Trainer` does not take."""
    role = os.getenv(LightningEnvVar.AGL_CURRENT_ROLE.value)
    if role not in (None, "both"):
        refuse(f"AGL_CURRENT_ROLE={role}", _ROLE)
    for variable, instead in _REFUSED.items():
        if os.getenv(variable.value) is not None:
            refuse(variable.value, instead)


__all__ = ["LightningEnvVar", "resolve_bool_env_var", "resolve_int_env_var", "resolve_str_env_var"]
