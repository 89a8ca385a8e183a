"""What serves a run's policies: store, engines and gateway."""
