"""The engine that serves a Hugging Face model inside this process."""
