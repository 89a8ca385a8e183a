"""Toy agents for Leyden, unchanged. Importing this does not load the framework."""

from leyden_toy._adapter import ToyAdapter
from leyden_toy._instrumentor import ToyInstrumentor

__all__ = ["ToyAdapter", "ToyInstrumentor"]
