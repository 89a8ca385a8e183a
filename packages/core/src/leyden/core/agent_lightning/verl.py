"""Agent Lightning's parts of VERL, which `algorithm=VERL(config)` replaces."""

from leyden.core.agent_lightning.replaced import lookup

__getattr__ = lookup("verl")
