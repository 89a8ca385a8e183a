"""The gateway: the model endpoint that an agent calls; it answers in the provider's dialect and records every call."""
