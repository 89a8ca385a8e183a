"""`leyden serve` and `leyden runs`: several runs on one machine."""
