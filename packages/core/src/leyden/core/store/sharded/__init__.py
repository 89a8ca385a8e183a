"""A store over several others, its shards, each in PostgreSQL, Redis or SQLite."""
