"""A run on disk: its files, its versions, and what can be done with them."""
