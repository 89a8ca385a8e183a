"""Arguments of a user's function for a task: the row, the row's text, or the row's values by parameter name.

The rules are those of `task_input`, so that one dataset fits functions and frameworks alike.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Union, cast

from leyden.core.data.rollout import Task
from leyden.core.runner.user_code.calls import name_of, shortened
from leyden.core.runner.user_code.task_input import (
    ANSWER_KEYS,
    TEXT,
    TEXT_KEYS,
    MadeInput,
    is_row,
    misfit,
    row_of,
    text_of,
)

ROW_NAMES = frozenset(
    {"case", "data", "datum", "entry", "example", "instance", "item", "record", "row", "sample", "task"}
)
"""Parameters with these names take the whole row, unless their annotation excludes it."""
TEXT_NAMES = frozenset(
    {
        *(*TEXT_KEYS, "content", "instruction", "message", "msg", "q", "request", "utterance"),
        *("user_input", "user_message", "user_prompt", "user_query"),
    }
)
"""Parameters with these names take the row's text, unless their annotation excludes it."""
MESSAGES = "messages"

_Parameter = inspect.Parameter
_POSITIONAL = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (*_POSITIONAL, _Parameter.KEYWORD_ONLY)
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Arguments:
    """Positional and keyword arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def call(self, function: Callable[..., Any]) -> Any:
        """Call `function` with these arguments and return its result."""
        return function(*self.args, **(self.kwargs or {}))


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of `function`, with evaluated annotations where possible.

    Raises ValueError or TypeError where `function` has no signature.
    """
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # an annotation may be any expression, or use names that exist only for type checkers
        return inspect.signature(function)


def shown(function: Callable[..., Any]) -> str:
    """Return the name and parameters of `function` for a message, or the name alone where it has no signature."""
    if not has_signature(function):
        return name_of(function)
    signature = inspect.signature(function)
    parameters = [_without_long_default(one) for one in signature.parameters.values()]
    signature = signature.replace(parameters=parameters, return_annotation=_Parameter.empty)
    return f"{name_of(function)}{shortened(signature, quote=False)}"


def _without_long_default(parameter: _Parameter) -> _Parameter:
    """Replace a default that is an object: its `repr` may be long, or raise."""
    default = parameter.default
    if default is _Parameter.empty or default is None or type(default) in (str, int, float, bool):
        return parameter
    return parameter.replace(default=...)


def has_signature(function: Callable[..., Any]) -> bool:
    """Return whether Python can find the parameters of `function`. For some builtins it cannot."""
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        return False
    return True


def takes_task(function: Callable[..., Any]) -> bool:
    """Return whether `function` has a parameter that can take a task: one that no `functools.partial` has fixed."""
    return has_signature(function) and not signature_of(function).parameters.keys() <= _fixed(function)


def for_task(parameter: inspect.Parameter) -> bool:
    """Return whether the parameter's name is one for a task or for a task's text."""
    return parameter.name in (*TEXT_NAMES, *ROW_NAMES, MESSAGES)


def arguments_for(function: Callable[..., Any], task: Task) -> Arguments:
    """Return the arguments with which `function` is called for `task`.

    A function with one required parameter, or with defaults for all parameters, gets one main value. It is the row's
    value of the parameter's name. Otherwise it is the row's text where the name or the annotation requires text, else
    the row.

    With several required parameters, or `**kwargs`, the row's keys are matched by name. Answers are passed only where a
    required parameter has their name, or where `--input` made them. Arguments that a `functools.partial` has fixed
    stay.

    Raises TaskError, which names the keys found and the signature, where nothing fits.
    """
    signature = signature_of(function)
    parameters = list(signature.parameters.values())
    fixed = _fixed(function)
    named = [one for one in parameters if one.kind in _NAMED and one.name not in fixed]
    required = [one for one in named if one.default is _Parameter.empty]
    keywords = parameters[-1:] and parameters[-1].kind is _Parameter.VAR_KEYWORD
    matcher = _TaskArguments(function, task)
    if not named:
        return matcher.by_no_name(by_keywords=bool(keywords) and len(parameters) == 1, fixed=fixed)
    if len(required) <= 1:
        main = required[0] if required else matcher.main(named)
        value, by_name = matcher.value(main)
        given = {main.name: value}
        if not by_name:
            return _bound(signature, given, {})
    else:
        given = matcher.values(required)
    given.update(matcher.optional([one for one in named if one.name not in given]))
    return _bound(signature, given, matcher.rest({*given, *fixed}) if keywords else {})


class _TaskArguments:
    """Matches one task to the parameters of one function."""

    def __init__(self, function: Callable[..., Any], task: Task) -> None:
        self._task, self._row = task, row_of(task)
        self._function = function

    def by_no_name(self, *, by_keywords: bool, fixed: typing.Container[str]) -> Arguments:
        """Return the arguments for a function without named parameters.

        A row is passed only as keywords, or as `--input` made it. Raises TaskError otherwise.
        """
        if by_keywords and is_row(self._task):
            return Arguments(kwargs=self.rest(fixed))
        if is_row(self._task) and not isinstance(self._task, MadeInput):
            wants = (
                f"{shown(self._function)} has no named parameter; if a decorator hides its parameters, add "
                "functools.wraps"
            )
            raise misfit(self._task, wants)
        return Arguments((self._task,))

    def main(self, parameters: Sequence[_Parameter]) -> _Parameter:
        """Return the parameter that takes the task, of several with defaults."""
        known = (self._row, (*TEXT_NAMES, MESSAGES, *ROW_NAMES))
        return next((one for names in known for one in parameters if one.name in names), parameters[0])

    def value(self, parameter: _Parameter) -> tuple[Any, bool]:
        """Return the value of the only required parameter, and whether it is the row's value of that name."""
        kinds = _kinds(parameter.annotation)
        if parameter.name in self._row and not self._takes_row(parameter, kinds):
            return self._row[parameter.name], True
        found = self._by_meaning(parameter, kinds)
        if found is not _MISSING:
            return found, False
        if kinds == {"object"} and is_row(self._task):
            kind = getattr(parameter.annotation, "__name__", parameter.annotation)
            raise misfit(self._task, f"{shown(self._function)} needs a value of type {kind}")
        return self._task, False

    def values(self, required: Sequence[_Parameter]) -> dict[str, Any]:
        """Return values for several required parameters, by name.

        One parameter that the row does not have may take the row's text or the row. Raises TaskError where more are
        missing.
        """
        given = {one.name: self._row[one.name] for one in required if one.name in self._row}
        missing = [one for one in required if one.name not in given]
        if len(missing) == 1 and self._row:
            (one,) = missing
            kinds = _kinds(one.annotation)
            found = self._task if self._takes_row(one, kinds) else self._by_meaning(one, kinds)
            if found is not _MISSING:
                given[one.name] = found
                missing = []
        if missing:
            raise misfit(self._task, f"{shown(self._function)} needs {', '.join(one.name for one in missing)}")
        return given

    def optional(self, parameters: Sequence[_Parameter]) -> dict[str, Any]:
        """Return values for parameters with defaults: the row's values of the same names, without answers."""
        names = [one.name for one in parameters]
        return {name: self._row[name] for name in names if name in self._row and self._is_given(name)}

    def rest(self, given: typing.Container[str]) -> dict[str, Any]:
        """Return the values for `**kwargs`: the row's other keys, without answers."""
        return {key: value for key, value in self._row.items() if key not in given and self._is_given(key)}

    def _is_given(self, key: Any) -> bool:
        return isinstance(key, str) and (key not in ANSWER_KEYS or isinstance(self._task, MadeInput))

    def _by_meaning(self, parameter: _Parameter, kinds: set[str]) -> Any:
        """Return the row's messages or text, where the parameter's name or annotation requires them.

        Returns `_MISSING` where it requires neither. Raises TaskError where the row does not have them.
        """
        if not is_row(self._task) or "mapping" in kinds:
            return _MISSING
        text = text_of(self._task)
        wants_text = kinds == {"any"} and parameter.name in TEXT_NAMES
        if parameter.name == MESSAGES or kinds == {"list"}:
            if MESSAGES in self._row:
                return self._row[MESSAGES]
            if parameter.name == MESSAGES and text is not None:
                return [{"role": "user", "content": text}]
        elif text is not None and ("text" in kinds or wants_text):
            return text
        wants_text = wants_text and parameter.name != "input"  # a parameter `input` may mean the row
        if wants_text or kinds <= {"text", "list"}:
            what, key = ("text", TEXT) if wants_text or "text" in kinds else ("list", parameter.name)
            raise misfit(self._task, f"{shown(self._function)} takes a {what} under the key {key}")
        return _MISSING

    def _takes_row(self, parameter: _Parameter, kinds: set[str]) -> bool:
        if parameter.name in ROW_NAMES:
            return kinds & {"any", "mapping"} != set()
        return "mapping" in kinds and not isinstance(self._row.get(parameter.name), Mapping)


def _fixed(function: Callable[..., Any]) -> set[str]:
    """Return the keywords that a `functools.partial` has fixed. Its signature lists them as defaults."""
    return set(cast("functools.partial[Any]", function).keywords) if isinstance(function, functools.partial) else set()


def _bound(signature: inspect.Signature, given: Mapping[str, Any], rest: Mapping[str, Any]) -> Arguments:
    """Pass positional parameters by position up to the first gap, and the rest by name."""
    args: list[Any] = []
    kwargs = {**given, **rest}
    for parameter in signature.parameters.values():
        if parameter.kind not in _POSITIONAL or parameter.name not in kwargs:
            break
        args.append(kwargs.pop(parameter.name))
    return Arguments(tuple(args), kwargs)


def _kinds(annotation: Any) -> set[str]:
    """Return the kinds of value that an annotation admits: `any`, `text`, `mapping`, `list`, `object`."""
    if annotation is _Parameter.empty or annotation is Any or annotation is object:
        return {"any"}
    if isinstance(annotation, str):  # an annotation that could not be evaluated
        return {"text"} if annotation == "str" else {"any"}
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        admitted = [_kinds(one) for one in typing.get_args(annotation) if one is not type(None)]
        return set[str]().union(*admitted) or {"any"}
    if isinstance(annotation, typing.NewType):
        return _kinds(annotation.__supertype__)
    cls: Any = origin or annotation
    return {_kind_of_class(cls)} if inspect.isclass(cls) else {"any"}


def _kind_of_class(cls: type[Any]) -> str:
    if typing.is_typeddict(cls) or issubclass(cls, Mapping):
        return "mapping"
    if issubclass(cls, str):
        return "text"
    if cls in (list, Sequence):
        return "list"
    return "object" if _has_fields(cls) or issubclass(cls, int | float | bytes) else "any"


def _has_fields(cls: type[Any]) -> bool:
    """Return whether objects of `cls` are not mappings: dataclasses and models of pydantic, attrs and msgspec."""
    marks = ("model_fields", "__attrs_attrs__", "__struct_fields__")
    return is_dataclass(cls) or any(hasattr(cls, mark) for mark in marks)
