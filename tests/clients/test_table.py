"""The page client × case is what the suite declares, and every exchange is in it."""

import pytest
from exchanges import load
from observing import CLIENTS
from table import APIS, CASES, NAMES, PAGE, case_of, page


def test_the_page_is_what_the_suite_declares() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/clients/table.py`"


def test_every_exchange_belongs_to_one_case() -> None:
    assert {case_of(name) for name in load()} == CASES.keys()
    with pytest.raises(LookupError):
        case_of("chat_something_else")


def test_every_client_has_a_name_and_apis() -> None:
    assert CLIENTS.keys() == NAMES.keys()
    assert all(set(client.dialects) <= APIS.keys() for client in CLIENTS.values())


def test_every_reason_leaves_something_out() -> None:
    for client in CLIENTS.values():
        names = [name for name, one in load().items() if one.dialect in client.dialects]
        reasons = {client.why_not(name) for name in names} - {None}
        assert reasons == set(client.cannot.values())
