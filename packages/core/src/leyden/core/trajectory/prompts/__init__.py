"""Prompt components of an agent, found in the recorded calls of several rollouts."""
