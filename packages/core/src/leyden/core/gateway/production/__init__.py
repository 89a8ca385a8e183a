"""Captures of agents in production: their beginning, their spans and their end."""
