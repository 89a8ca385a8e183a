"""`Launch`: what the process that starts VERL is told, on its first line of input. Knows nothing of VERL's code."""

from typing import Any

import msgspec

REFUSED = "leyden refuses: "
"""Begins the line that says what cannot work."""
URL, TOKEN = "LEYDEN_VERL_URL", "LEYDEN_VERL_TOKEN"
"""Variables by which VERL's processes find the run. Not part of its configuration, which VERL prints."""
MODULES = "VERL_USE_EXTERNAL_MODULES"
"""Variable of VERL's own: modules with plug-ins that `import verl` loads, by comma."""
METRICS = "VERL_FILE_LOGGER_PATH"
"""Variable of VERL's own: where it writes the numbers of its steps."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of VERL."""

    config: dict[str, Any]
    """VERL's own dictionary, as far as given; its defaults stand for the rest."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of the same."""
    settings: dict[str, Any]
    """What the run itself decides, by the same keys; nobody may contradict it."""
    ray_address: str | None
    """The cluster to join; None starts one on this machine."""
    environment: dict[str, str]
    """Variables of every process of VERL."""
