"""The Completions API, which continues texts: its requests, and how an answer is written."""
