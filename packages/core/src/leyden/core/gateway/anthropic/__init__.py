"""Anthropic's Messages API: what is asked, how an answer and an error are written."""
