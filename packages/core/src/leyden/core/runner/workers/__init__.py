"""The processes that run agents, here and on Ray."""
