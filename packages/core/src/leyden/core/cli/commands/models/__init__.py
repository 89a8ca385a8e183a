"""`leyden models`: the versions of runs."""
