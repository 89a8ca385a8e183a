"""The engines whose policy vLLM serves, in processes of its own."""
