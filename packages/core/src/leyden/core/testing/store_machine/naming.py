"""`AttemptNames`: maps the attempt ids of a store to the attempts of the model, and back."""

from typing import Any

from msgspec.structs import replace

from leyden.core.data.page import Page
from leyden.core.data.rollout import Attempt, AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.data.worker import Worker
from leyden.core.testing.store_machine.states import name_of


class AttemptNames:
    """Records ids from answers, and translates in both directions."""

    def __init__(self) -> None:
        self._store_ids: dict[str, str] = {}
        self._model_ids: dict[str, str] = {}

    def to_store(self, value: Any) -> Any:
        """Return an argument with the store's ids."""
        return _translated(value, self._store_ids)

    def from_store(self, value: Any) -> Any:
        """Return an answer with the model's ids, and record new ones."""
        self._record(value)
        return self.known(value)

    def known(self, value: Any) -> Any:
        """Return an answer with the model's ids, as far as they are recorded by now."""
        return _translated(value, self._model_ids)

    def _record(self, value: Any) -> None:
        if isinstance(value, (list, tuple, Page)):
            for item in value:  # type: ignore[reportUnknownVariableType] an answer may be anything
                self._record(item)
        elif isinstance(value, AttemptedRollout):
            self._record(value.attempt)
        elif isinstance(value, Attempt):
            model_id = name_of(value.rollout_id, value.sequence_id)
            known = (
                self._store_ids.setdefault(model_id, value.attempt_id),
                self._model_ids.setdefault(value.attempt_id, model_id),
            )
            assert known == (value.attempt_id, model_id), (
                f"{value.attempt_id} is {model_id}, and there is {known} already"
            )


def _translated(value: Any, names: dict[str, str]) -> Any:
    """Return `value` with the ids of attempts replaced, at any depth."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, (list, tuple)):
        members: list[Any] = [_translated(member, names) for member in value]  # type: ignore[reportUnknownVariableType]
        return members if isinstance(value, list) else tuple(members)
    if isinstance(value, Page):
        return replace(value, items=_translated(value.items, names))  # type: ignore[reportUnknownMemberType]
    if isinstance(value, AttemptedRollout):
        return replace(value, attempt=_translated(value.attempt, names))
    if isinstance(value, (Attempt, Span)):
        return replace(value, attempt_id=names.get(value.attempt_id, value.attempt_id))
    if isinstance(value, Worker) and value.current_attempt_id is not None:
        return replace(value, current_attempt_id=names.get(value.current_attempt_id, value.current_attempt_id))
    return value
