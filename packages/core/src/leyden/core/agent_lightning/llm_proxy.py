"""Agent Lightning's proxy of models, which Leyden's gateway replaces."""

from leyden.core.agent_lightning.replaced import lookup

__getattr__ = lookup("llm_proxy")
