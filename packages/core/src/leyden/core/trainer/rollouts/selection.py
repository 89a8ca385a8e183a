"""Selection of trained calls: builds a run's `Selector` and validates the user's selection arguments."""

import inspect
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.runner.attempts.error_text import raised
from leyden.core.runner.user_code.calls import name_of
from leyden.core.runner.user_code.loading import load_object
from leyden.core.trainer.config import RunConfig
from leyden.core.trajectory.select import Predicate, Selector


class Selection(TypedDict, total=False):
    """Selection of trained calls, with the field names of `RunConfig`."""

    agent_match: str
    span_match: str
    attribute_match: dict[str, str]
    predicate: str


def make_selector(config: RunConfig) -> Selector:
    """Return the selector of a run. Raises UsageError when its predicate does not exist or cannot be called."""
    return Selector(
        agent_match=config.agent_match,
        span_match=config.span_match,
        attribute_match=config.attribute_match,
        predicate=None if config.predicate is None else load_predicate(config.predicate),
    )


def load_predicate(reference: str) -> Predicate:
    """Return the function that an import string names; it raises errors as UsageError in one line."""
    function: Any = load_object(reference)
    try:
        inspect.signature(function).bind(None, ())
    except (TypeError, ValueError):
        raise UsageError(f"predicate {reference} cannot be called as predicate(span, above)") from None

    def predicate(span: Span, above: Any) -> bool:
        try:
            return bool(function(span, above))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            what = f"predicate {name_of(function)} raised {raised(error)}"
            raise UsageError(f"{what} for a call of rollout {span.rollout_id}") from error

    return predicate


def read_selection(given: Mapping[str, Any]) -> Selection:
    """Check the argument of `Trainer(select=...)` and return it without None values.

    Raises UsageError for an unknown key or a value of the wrong type.
    """
    known = Selection.__annotations__
    if unknown := given.keys() - known.keys():
        raise UsageError(f"select= takes {', '.join(known)}, not {', '.join(sorted(unknown))}")
    for key, value in given.items():
        wanted = dict if key == "attribute_match" else str
        if value is not None and not isinstance(value, wanted):
            why = "; it runs in the learning process, so give its import string" if key == "predicate" else ""
            raise UsageError(f"select= takes a {wanted.__name__} for {key}, not a {type(value).__name__}{why}")
    return cast(Selection, {key: value for key, value in given.items() if value is not None})
