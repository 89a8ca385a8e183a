"""The critic: what to expect of a rollout, and how that is learned."""
