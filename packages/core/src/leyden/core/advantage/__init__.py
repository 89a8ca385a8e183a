"""Advantages: returns per transition in, training weights out. Knows nothing of tokens or gradients."""
