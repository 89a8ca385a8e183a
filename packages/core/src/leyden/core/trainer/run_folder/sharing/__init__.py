"""Shared runs: stores that several runs use, artifacts from which other machines continue, and who owns a run."""
