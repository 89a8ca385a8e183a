"""Capture of agents in production, where everything fails open."""
