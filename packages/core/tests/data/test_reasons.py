import pytest

from leyden.core.data import reasons


@pytest.mark.parametrize("name", ["left: no spread", "reward not above 0.5", "no spread"])
def test_names_with_a_side_or_a_number_are_of_the_table(name: str) -> None:
    assert reasons.reason_of(name).means != name


def test_every_reason_is_in_the_table_once_and_says_what_it_means() -> None:
    assert len(reasons.REASONS) == len(reasons.TABLE)
    constants = [
        value for name, value in vars(reasons).items() if name.isupper() and name[0] != "_" and isinstance(value, str)
    ]
    names = {*constants, *reasons.FAILED.values()}
    assert names == reasons.REASONS.keys()
    assert all(reason.means and not reason.means.endswith(".") for reason in reasons.TABLE)
    assert reasons.reason_of("my own reason").means == "my own reason"
