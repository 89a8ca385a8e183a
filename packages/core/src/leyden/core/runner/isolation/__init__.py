"""Keeps concurrent rollouts apart: what they would share, and a process for each where they would share something."""
