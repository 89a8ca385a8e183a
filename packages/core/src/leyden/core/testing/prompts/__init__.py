"""Algorithms that train prompts, for tests: one with a script, its context in memory, and the contract of all."""
