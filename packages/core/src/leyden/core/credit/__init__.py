"""Credit assignment: one reward per trajectory in, one return per transition out."""
