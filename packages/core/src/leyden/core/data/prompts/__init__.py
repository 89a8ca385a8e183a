"""Prompts of agents: the texts of a request that an agent's author wrote, and the texts that replace them."""
