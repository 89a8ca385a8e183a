"""Command lines as agents."""
