"""Writes the table of parameters into `docs/wire.md`, between its marks; a test fails if the page has another one."""

from pathlib import Path

from leyden.core.gateway.parameters import BEGIN, END, table

PAGE = Path(__file__).parents[1] / "docs" / "wire.md"


def with_table(page: str) -> str:
    """Return the page with the current table."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the table: it needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{table()}{after}"


def main() -> None:
    """Write the table."""
    PAGE.write_text(with_table(PAGE.read_text()))


if __name__ == "__main__":
    main()
