"""What runs in VERL's own processes."""
