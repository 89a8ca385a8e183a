"""Algorithms, each with a training loop of its own; trajectory, credit, advantage and policy meet here alone."""
