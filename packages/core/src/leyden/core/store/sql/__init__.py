"""The store in a SQLite file, and what it shares with the one in PostgreSQL."""
