"""`leyden prompts`: the prompts of an agent, their comparison, and the tree of a search."""
