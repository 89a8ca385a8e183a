"""`Launch`: the message, on the first line of its input, for the process that starts VERL."""

from collections.abc import Mapping
from typing import Any

import msgspec

REFUSED = "leyden refuses: "
"""Prefix of the output line with the reason why a configuration cannot work."""
URL, TOKEN = "LEYDEN_VERL_URL", "LEYDEN_VERL_TOKEN"
"""Environment variables with which VERL's processes find the run.

They are not part of VERL's configuration, because VERL prints that.
"""
MODULES = "VERL_USE_EXTERNAL_MODULES"
"""VERL's own variable: comma-separated plug-in modules that `import verl` loads."""
METRICS = "VERL_FILE_LOGGER_PATH"
"""VERL's own variable: the file to which it writes the metrics of its steps."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of VERL."""

    config: dict[str, Any]
    """VERL's own dictionary as given; VERL's defaults are used for the rest."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of the same configuration."""
    settings: dict[str, Any]
    """Values that the run sets, under the same keys; the user must not contradict them."""
    ray_address: str | None
    """The cluster to join; None starts one on this machine."""
    environment: dict[str, str]
    """Environment variables of all VERL processes."""


def ray_options(
    given: Mapping[str, Any], usual: Mapping[str, Any], variables: Mapping[str, str], address: str | None
) -> dict[str, Any]:
    """Return the arguments of `ray.init`, which joins the cluster at `address` or at RAY_ADDRESS, or starts one.

    `given` is VERL's `ray_kwargs.ray_init`. `usual` is VERL's own runtime environment, which that of `given` changes,
    and `variables` are added to its variables. An existing cluster takes no other options of `given`.
    """
    changes: dict[str, Any] = given.get("runtime_env") or {}
    changes = {name: value for name, value in changes.items() if value is not None}
    own = {**usual.get("env_vars", {}), **changes.get("env_vars", {}), **variables}
    runtime = {**usual, **changes, "env_vars": own}
    if address is not None:
        return {"address": address, "runtime_env": runtime}
    options = {name: value for name, value in given.items() if value is not None and name != "runtime_env"}
    return {**options, "runtime_env": runtime}
