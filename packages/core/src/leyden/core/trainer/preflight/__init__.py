"""Preflight: proves, before a run spends an hour, that it can learn. One file for each family of checks."""
