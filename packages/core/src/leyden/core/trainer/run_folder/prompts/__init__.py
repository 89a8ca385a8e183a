"""Prompts of a run: their files, the state of a search, and what a name on the command line means."""
