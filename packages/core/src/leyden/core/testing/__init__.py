"""Fakes, servers and contract suites for tests, shipped for users, too."""
