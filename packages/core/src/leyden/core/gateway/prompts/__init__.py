"""Prompts that are replaced on their way to the model: the edits of an attempt, requests and echoes."""
