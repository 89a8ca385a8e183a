"""One model call, from its request to its record."""
