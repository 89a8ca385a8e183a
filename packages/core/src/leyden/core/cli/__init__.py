"""The `leyden` command: how options are read, and how results and errors are printed."""
