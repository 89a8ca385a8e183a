"""From spans to transitions, and which of them are trained."""
