"""Takes an attempt into the child processes that an agent starts."""
