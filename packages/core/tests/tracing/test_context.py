from contextvars import copy_context

from leyden.core.testing import nouns
from leyden.core.tracing.context import (
    Caller,
    current_attempt,
    current_caller,
    move,
    open_attempt,
    set_caller,
    where,
)


def test_another_context_moves_to_where_one_was_and_back() -> None:
    elsewhere = copy_context()
    attempt = nouns.attempt()
    solver = Caller(agent="solver")
    with open_attempt(attempt):
        set_caller(solver)
        place = where()
        before = elsewhere.run(where)
        elsewhere.run(move, place)
        assert elsewhere.run(current_attempt) is attempt
        assert elsewhere.run(current_caller) is solver
        elsewhere.run(move, before)
        assert elsewhere.run(current_caller) is None
    assert elsewhere.run(current_attempt) is None
