"""`Launch`: the message, on the first line of its input, for the process that starts VERL."""

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
