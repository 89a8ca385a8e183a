"""One attempt, from its claim to its end."""
