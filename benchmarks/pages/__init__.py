"""Pages of the console in real browsers, for the benchmark of the console."""
