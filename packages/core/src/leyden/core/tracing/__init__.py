"""Inside the agent's process: which attempt runs, which agent speaks, what is recorded, and where model calls go."""
