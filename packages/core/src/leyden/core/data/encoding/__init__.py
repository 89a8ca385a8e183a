"""How text, token ids, URLs, settings and compressed bodies are written and read."""
