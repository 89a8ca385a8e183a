"""How much of the gateway one attempt can take: calls, connections, bytes, seconds."""
