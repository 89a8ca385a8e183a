"""A store over HTTP: its server, its client, and who may do what there."""
