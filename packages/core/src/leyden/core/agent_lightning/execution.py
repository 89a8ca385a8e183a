"""Execution strategies of Agent Lightning, which `Trainer` and its placement of runners replace."""

from leyden.core.agent_lightning.replaced import lookup

__getattr__ = lookup("execution")
