"""Rollouts, spans and transitions of a store, written as files that other tools read."""
