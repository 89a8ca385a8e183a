"""Losses: pure functions over the trained tokens, one a file; none loads torch before it is used."""
