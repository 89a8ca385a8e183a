"""Algorithms that train prompts: textual gradients, GEPA, and what they share."""
