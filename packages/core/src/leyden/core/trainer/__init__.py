"""Puts a run together: what runs where, the run's folder, its progress and its report."""
