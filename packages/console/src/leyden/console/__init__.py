"""Web console of Leyden: runs, rollouts and trained tokens in a browser. It only reads."""

from leyden.console.server import serve

__all__ = ["serve"]
