"""AutoGen agents and teams for Leyden, unchanged. Importing this does not load the framework."""
