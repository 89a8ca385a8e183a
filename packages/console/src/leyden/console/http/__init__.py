"""HTTP: who may request what, answers as JSON, and streams of events."""
