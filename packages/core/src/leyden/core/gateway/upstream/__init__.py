"""Endpoints of others that answer in the policy's place."""
