"""Advantages: returns per transition in, training weights out."""
