import pytest

from leyden.core.errors import first_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "ValueError"),
        ("\n\n  one \n two", "one"),
        ("one", "one"),
        ("of the class:\n    ValueError:\n\n   too many layers\nmore", "of the class: ValueError: too many layers"),
        ("ends so:", "ends so:"),
    ],
)
def test_the_first_line_of_an_error_has_its_reason(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
