"""Rollouts: which are begun, which are waited for, and how they are read."""
