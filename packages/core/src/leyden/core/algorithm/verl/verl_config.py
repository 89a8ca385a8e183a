"""VERL's configuration, as VERL itself builds, resolves and validates it.

Import this module only inside functions, because it imports VERL.
"""

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from leyden.core.errors import UsageError

# Imported by name, because VERL is an optional dependency that is absent when types are checked.
hydra: Any = import_module("hydra")
omegaconf: Any = import_module("omegaconf")
roles: Any = import_module("verl.trainer.ppo.utils")
verl_config: Any = import_module("verl.utils.config")

OmegaConf: Any = omegaconf.OmegaConf
OmegaConfError: type[Exception] = omegaconf.errors.OmegaConfBaseException
HydraError: type[Exception] = import_module("hydra.errors").HydraException

log = logging.getLogger(__name__)


def default_config(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return VERL's own `ppo_trainer` configuration with Hydra `overrides`, interpolations unresolved.

    Raises UsageError for an override that VERL's configuration does not accept.
    """
    folder = Path(str(roles.__file__)).parents[1] / "config"
    try:
        with hydra.initialize_config_dir(str(folder), version_base=None):
            return plain(hydra.compose("ppo_trainer", overrides=list(overrides)))
    except (HydraError, OmegaConfError) as error:
        raise UsageError(f"VERL's configuration does not accept this override: {one_line(error)}") from error


def plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return an OmegaConf configuration as dictionaries, lists and values."""
    found: Any = OmegaConf.to_container(config, resolve=resolve)
    return found


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` with all interpolations resolved; raises UsageError for one that refers to nothing."""
    try:
        return plain(OmegaConf.create(config), resolve=True)
    except OmegaConfError as error:
        raise UsageError(f"VERL's configuration: {one_line(error)}") from error


def field_names(target: str) -> frozenset[str]:
    """Return the fields of the dataclass that VERL makes of a section; `target` is the section's `_target_`."""
    module, _, name = target.rpartition(".")
    kind: Any = getattr(import_module(module), name)
    return frozenset(field.name for field in fields(kind)) if is_dataclass(kind) else frozenset()


def validate(config: dict[str, Any]) -> None:
    """Raise UsageError, in one line, for a configuration that VERL's own validation refuses."""
    full_config: Any = OmegaConf.create(config)
    output = StringIO()
    try:
        with redirect_stdout(output):
            verl_config.validate_config(
                full_config, roles.need_reference_policy(full_config), roles.need_critic(full_config)
            )
    except (AssertionError, ValueError, OmegaConfError, HydraError, ImportError) as error:
        raise UsageError(f"VERL refuses the configuration: {one_line(error)}") from error
    log.debug("%s", output.getvalue())


def one_line(error: Exception) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__
