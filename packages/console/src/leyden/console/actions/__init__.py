"""Actions of the console, with `--allow-actions`: each is a command of `leyden` in a process of its own."""
