"""Entry point of `python -m leyden.core.cli`: runs the command `leyden`."""

from leyden.core.cli.main import main

main()
