"""The subcommands of `leyden`, one a file."""
