"""Servers for tests: real stores, and endpoints that stand in for providers."""
