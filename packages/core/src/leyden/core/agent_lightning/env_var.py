"""Environment variables of Agent Lightning, which Leyden does not read."""

from leyden.core.agent_lightning.replaced import lookup

__getattr__ = lookup("env_var")
