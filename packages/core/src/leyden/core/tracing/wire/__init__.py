"""Wire routing: takes the model calls of an agent's HTTP clients to the gateway."""
