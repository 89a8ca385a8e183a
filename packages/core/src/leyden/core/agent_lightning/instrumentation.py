"""Agent Lightning's instrumentation, which Leyden's adapters replace."""

from leyden.core.agent_lightning.replaced import lookup

__getattr__ = lookup("instrumentation")
