"""What `benchmarks/loop.py` runs: one task for both sides, and each side's steps with a clock around them."""
