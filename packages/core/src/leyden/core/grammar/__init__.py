"""Grammars: limit what a model may write to a JSON schema or a tool call; compiled grammars and their masks."""
