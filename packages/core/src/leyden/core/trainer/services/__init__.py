"""What `leyden` runs beside training: a store, captures, dry runs, one command."""
