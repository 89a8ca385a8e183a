"""Experiments: runs of several arms with several seeds, and the report that compares them."""
