"""Running agents: adapters, attempts, worker processes, and how attempts are isolated."""
