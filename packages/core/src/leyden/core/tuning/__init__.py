"""Tuning: a search for settings of a run by Optuna, each trial a run of its own."""
