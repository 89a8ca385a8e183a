"""CrewAI crews and flows for Leyden, unchanged. Importing this does not load the framework."""
