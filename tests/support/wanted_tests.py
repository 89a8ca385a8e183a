"""Which tests the expression of pytest's `-m` selects."""


def are_long_wanted(expression: str) -> bool:
    """Whether the expression of `-m` selects long tests, all of them or those that are something else as well."""
    return expression.partition(" and ")[0] in ("long", "campaign")
