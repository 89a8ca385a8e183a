"""Stores that an earlier version of Leyden has written, as fixtures of tests. `write_older_data.py` is the command."""
