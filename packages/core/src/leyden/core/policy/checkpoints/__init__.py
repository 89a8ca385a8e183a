"""Checkpoints and exported policies on disk."""
