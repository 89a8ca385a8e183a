from contextvars import copy_context

from leyden.core.testing import factories
from leyden.core.tracing.context import (
    Caller,
    context_state,
    current_attempt,
    current_caller,
    open_attempt,
    process_attempt,
    set_caller,
    set_context_state,
)


def test_another_context_moves_to_where_one_was_and_back() -> None:
    elsewhere = copy_context()
    attempt = factories.attempt()
    solver = Caller(agent="solver")
    with open_attempt(attempt):
        set_caller(solver)
        place = context_state()
        before = elsewhere.run(context_state)
        elsewhere.run(set_context_state, place)
        assert elsewhere.run(current_attempt) is attempt
        assert elsewhere.run(current_caller) is solver
        elsewhere.run(set_context_state, before)
        assert elsewhere.run(current_caller) is None
    assert elsewhere.run(current_attempt) is None


def test_a_process_of_one_attempt_works_for_it_where_nothing_else_is_said() -> None:
    attempt, another = factories.attempt(), factories.attempt()
    started_at_import = copy_context()
    with process_attempt(attempt):
        assert started_at_import.run(current_attempt) is attempt
        with open_attempt(another):
            assert current_attempt() is another
    assert started_at_import.run(current_attempt) is None
