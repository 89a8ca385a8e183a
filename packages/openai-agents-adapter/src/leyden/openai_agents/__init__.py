"""OpenAI Agents SDK agents for Leyden, unchanged. Importing this does not load the framework."""
