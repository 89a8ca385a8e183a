"""How text, token ids, URLs and compressed bodies are written and read."""
