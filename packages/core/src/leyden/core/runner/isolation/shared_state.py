"""Detection of shared state: finds objects through which concurrent rollouts in one process could affect each other.

The search begins at the function or object that runs. It follows the names that the code uses, the functions and
classes behind them, and the contents of closures and instances. An object that cannot be followed counts as shared, so
the result "nothing is shared" is reliable. Installed libraries are trusted to isolate their own state. Their objects
are not, unless an adapter declares them stateless (`Adapter.stateless_parts`).
"""

import copy
import enum
import functools
import importlib.util
import inspect
import logging
import os
import random
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.finding import BUILT_IN, AgentSource
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.registry import installed_adapters
from leyden.core.runner.isolation.code_reading import FunctionNames, is_library, read_code
from leyden.core.runner.isolation.process_state import changed_by

_DYNAMIC = frozenset({"__import__", "delattr", "eval", "exec", "globals", "setattr", "vars"})
"""Builtin functions through which code reaches names that static analysis cannot find."""
_IMMUTABLE = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, re.Pattern, enum.Enum, BaseException),
    *(logging.Logger, logging.LoggerAdapter, random.Random, property, types.GenericAlias, types.UnionType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType),
)
_IMMUTABLE_MODULES = frozenset(
    {
        *(
            "_contextvars",
            "_operator",
            "_thread",
            "contextvars",
            "dataclasses",
            "datetime",
            "decimal",
            "fractions",
            "ipaddress",
        ),
        *("operator", "pathlib", "pydantic.types", "string", "typing", "typing_extensions", "uuid", "zoneinfo"),
    }
)
"""Modules whose types give objects that do not change, or that keep nothing of a task."""
_STATELESS_BASES = frozenset(
    {
        *("openai._base_client.BaseClient", "anthropic._base_client.BaseClient", "openai._resource.SyncAPIResource"),
        *("openai._resource.AsyncAPIResource", "jinja2.environment.Template"),
        *("tiktoken.core.Encoding", "pydantic.type_adapter.TypeAdapter"),
        "bm25s.BM25",
    }
)
"""Library classes whose objects keep nothing of a call."""
_PLAIN_BASES = frozenset({"builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol", "pydantic.main.BaseModel"})
"""Library base classes that do not change objects of a user's subclass."""
_CONTAINERS = (list, dict, set, bytearray)
_DEEPEST = 20
_MOST_FOUND = 20


@dataclass(frozen=True, slots=True)
class SharedObject:
    """An object that rollouts in one process would share."""

    name: str
    """Name in the user's code."""
    kind: str
    user: str
    """The code that uses it, such as `ask() of agent.py`."""
    why: str = ""

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return f"{self.name}{kind}, which {self.user} {self.why or 'uses'}"


def shared_objects(source: AgentSource) -> list[SharedObject]:
    """Return the objects that attempts of `source` would share, the most informative first.

    Empty where nothing can pass from one attempt to another.
    """
    walk, agent = _Walk((*installed_adapters(), *BUILT_IN)), cast("object", source.agent)
    if source.factory is not None:
        walk.visit(source.factory, _name_of(source.factory), "the run")
    elif issubclass(_class_of(agent), LitAgent):
        walk.visit_lit_agent(agent)
    else:
        parts = _call_safely(source.adapter.parts_not_copied, agent)
        if parts is None:
            walk.visit(agent, _name_of(agent), "the run")
        else:
            walk.visit_all(parts, "the agent")
    walk.finish()
    return walk.found


class _Walk:
    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self.found: list[SharedObject] = []
        self._adapters = [adapter for adapter in adapters if adapter.module is None or adapter.module in sys.modules]
        self._visited: dict[int, Any] = {}
        """Visited objects by identity. Holding them keeps their identities unique."""
        self._queue: list[Callable[[], None]] = []
        self._followed: list[tuple[Any, str, str]] = []
        """Objects whose own code does not change them, with their name and user."""
        self._changed_attributes = set[str]()
        """Attributes that the user's functions assign, on objects that the analysis cannot identify."""

    def visit(self, thing: Any, name: str, user: str) -> None:
        """Queue `thing` for inspection, once."""
        if id(thing) in self._visited:
            return
        self._visited[id(thing)] = thing
        self._queue.append(lambda: self._inspect(thing, name, user))

    def visit_all(self, things: Iterable[Any], user: str) -> None:
        """Queue each of `things` for inspection."""
        for thing in things:
            self.visit(thing, _name_of(thing), user)

    def visit_lit_agent(self, agent: Any) -> None:
        """Queue the class of `agent`, and the objects that its deep copies share."""
        self.visit(type(agent), type(agent).__name__, "the run")
        try:
            copied = copy.deepcopy(agent)
        except Exception:
            self._add(type(agent).__name__, agent, "the run", "cannot deep-copy")
            return
        for name, value in _attributes(agent):
            if name in vars(copied) and (vars(copied)[name] is value or callable(value)):
                self.visit(value, f"{type(agent).__name__}.{name}", type(agent).__name__)

    def finish(self) -> None:
        """Inspect all queued objects."""
        while self._queue and len(self.found) < _MOST_FOUND:
            self._queue.pop()()
        for thing, name, user in self._followed:
            if any(_has_attribute(thing, attribute) for attribute in self._changed_attributes):
                self._add(name, thing, user)

    def _add(self, name: str, thing: Any, user: str, why: str = "") -> None:
        cls = _class_of(thing)
        kind = "" if issubclass(cls, (type, types.ModuleType, types.FunctionType)) else cls.__name__
        found = SharedObject(name, kind, user, why)
        if found not in self.found:
            self.found.append(found)

    # --- Things

    def _inspect(self, thing: Any, name: str, user: str) -> None:
        try:
            followed = self._follow(thing, name, user)
        except Exception:  # any access to a user's object may raise
            followed = False
        if not followed:
            self._add(name, thing, user)
        elif not isinstance(thing, (type, types.ModuleType, types.FunctionType, *_IMMUTABLE)):
            self._followed.append((thing, name, user))

    def _follow(self, thing: Any, name: str, user: str) -> bool:
        """Inspect `thing`. Returns False where it may change or cannot be inspected."""
        kind = _class_of(thing)
        if isinstance(thing, type):
            return self._follow_class(thing)
        if (
            isinstance(thing, (types.ModuleType, *_IMMUTABLE))
            or kind is object
            or kind.__module__ in _IMMUTABLE_MODULES
        ):
            return True
        if isinstance(thing, types.FunctionType):
            return self._follow_function(thing, name)
        if kind in _WRAPPERS:
            self.visit_all(_WRAPPERS[kind](thing), user)
            return True
        if (parts := self._stateless_parts(thing)) is not None:
            self.visit_all(parts, user)
            return is_library(_file_of(kind)) or self._follow_instance(thing, name)
        if isinstance(thing, tuple | frozenset):
            self.visit_all(cast("Iterable[Any]", thing), user)
            return True
        return not is_library(_file_of(kind)) and self._follow_instance(thing, name)

    def _stateless_parts(self, thing: Any) -> Iterable[Any] | None:
        if any(f"{base.__module__}.{base.__qualname__}" in _STATELESS_BASES for base in type(thing).__mro__):
            return _call_safely(_parts_of_users, thing) or ()
        for adapter in self._adapters:
            if (parts := _call_safely(adapter.stateless_parts, thing)) is not None:
                return parts
        return None

    # --- Functions

    def _follow_function(self, function: types.FunctionType, name: str) -> bool:
        library = is_library(function.__code__.co_filename)
        user = f"{function.__name__}() of {os.path.basename(function.__code__.co_filename)}"
        for cell_name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if (value := _content(cell)) is not _EMPTY and not (library and not _is_users(value)):
                self._visit_value(value, cell_name, user, _NOTHING if library else read_code(function))
        if library or _is_generated(function):
            return True
        function_names = read_code(function)
        self._changed_attributes |= function_names.changed_attributes
        self._visit_names(function, function_names, user)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(value, f"a default of {function.__name__}()", user)
        for key, value in vars(function).items():
            self.visit(value, f"{function.__name__}.{key}", user)
        if not function_names.has_source:
            self._add(f"{function.__name__}()", function, "the run", "calls and whose source cannot be read")
        return True

    def _visit_names(self, function: types.FunctionType, function_names: FunctionNames, user: str) -> None:
        """Inspect all outside names that a function uses."""
        names = function.__globals__
        for name in sorted(function_names.assigned | {*function_names.written} & function_names.global_names):
            self._add(name, names.get(name), user, "changes")
        if function_names.writes_class:
            self._add("a class", type, user, "changes")
        for name in sorted(
            function_names.global_names & _DYNAMIC - names.keys() | function_names.attributes & {"import_module"}
        ):
            self._add(f"{name}()", vars, user, "can change any object with")
        for name in changed_by(function_names, names):
            self._add(f"{name}()", types, user, "calls: it changes the whole process")
        for name in sorted(function_names.global_names & names.keys()):
            self._visit_value(names[name], name, user, function_names)
        for module in self._modules_of(function, function_names, user):
            self._visit_module(module, function_names, user)

    def _visit_value(self, value: Any, name: str, user: str, function_names: FunctionNames) -> None:
        """Inspect the value of a name. A container that is only read is a constant."""
        if name in function_names.written:
            self._add(name, value, user, "changes")
        elif type(value) in _CONTAINERS and _is_constant(value, _depth_of(name, value, function_names)):
            self.visit_all(_leaves(value), user)
        else:
            self.visit(value, name, user)

    def _modules_of(
        self, function: types.FunctionType, function_names: FunctionNames, user: str
    ) -> Iterator[types.ModuleType]:
        """Yield the user's own modules among those that a function names or imports."""
        for name in function_names.global_names:
            if isinstance(module := function.__globals__.get(name), types.ModuleType) and _is_users_module(module):
                yield module
        for name in function_names.imports:
            if name in sys.modules:
                if _is_users_module(sys.modules[name]):
                    yield sys.modules[name]
            elif _would_be_users(name, function):
                self._add(name, types, user, "imports when it runs")

    def _visit_module(self, module: types.ModuleType, function_names: FunctionNames, user: str) -> None:
        for name in sorted(function_names.attributes & vars(module).keys()):
            self.visit(vars(module)[name], f"{module.__name__}.{name}", user)

    # --- Classes and their instances

    def _follow_class(self, cls: type) -> bool:
        if is_library(_file_of(cls)):
            return True
        for name, value in list(vars(cls).items()):
            if isinstance(value, _METHODS) or not (_is_hidden(name) or issubclass(cls, enum.Enum)):
                self.visit(value, f"{cls.__name__}.{name}", cls.__name__)
        for base in (*cls.__bases__, type(cls)):
            self.visit(base, base.__name__, cls.__name__)
        if issubclass(cls, type) and any(_changes_itself(method) for method in _methods(cls)):
            self._add("a class", cls, cls.__name__, "changes")
        return True

    def _follow_instance(self, thing: Any, name: str) -> bool:
        """Inspect an object of a user's class. Returns False where its own methods change it."""
        cls: Any = _class_of(thing)
        for base in cls.__mro__:
            if is_library(_file_of(base)):
                known = f"{base.__module__}.{base.__qualname__}"
                if known not in _PLAIN_BASES and self._stateless_parts(thing) is None:
                    return False
            elif any(_changes_itself(method) for method in _methods(base)):
                return False
        self.visit(cls, cls.__name__, name)
        for attribute, value in _attributes(thing):
            self.visit(value, f"{name}.{attribute}", name)
        return True


_NOTHING = FunctionNames()
_EMPTY = object()
_METHODS = (types.FunctionType, classmethod, staticmethod, property)
_CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__", "__set_name__", "model_post_init"})


def _class_of(thing: Any) -> Any:
    """Return the real class of `thing`, even if its `__class__` differs."""
    return type(cast("object", thing))


def _bound(method: Any) -> tuple[Any, ...]:
    return method.__func__, method.__self__


_WRAPPERS: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    types.MethodType: _bound,
    types.BuiltinFunctionType: lambda function: () if function.__self__ is None else (function.__self__,),
    types.MethodWrapperType: lambda method: (method.__self__,),
    types.MappingProxyType: lambda mapping: mapping.values(),
    functools.partial: lambda partial: (partial.func, *partial.args, *partial.keywords.values()),
    staticmethod: lambda method: (method.__func__,),
    classmethod: lambda method: (method.__func__,),
    weakref.ref: lambda reference: (reference(),),
    functools.cached_property: lambda method: (method.func,),
}
"""Functions that return the contents of objects that do not change themselves."""


def _call_safely(method: Callable[[Any], Iterable[Any] | None], thing: Any) -> list[Any] | None:
    """Return an adapter's answer for `thing` as a list. None where the adapter fails or has no answer."""
    try:
        parts = method(thing)
        return None if parts is None else list(parts)
    except Exception:
        return None


def _parts_of_users(client: Any) -> Iterable[Any]:
    """Yield the user's objects in a provider SDK's client: event hooks, a transport or an authentication.

    The private `_client` is the only way to a client's HTTP client, and to a resource's client.
    """
    http = getattr(client, "_client", None)
    if hasattr(http, "_client"):
        yield http  # the client of a resource
        return
    hooks: Mapping[str, Iterable[Any]] = getattr(http, "event_hooks", {})
    yield from (hook for each in hooks.values() for hook in each)
    held = (http, getattr(http, "_transport", None), getattr(http, "auth", None))
    yield from (part for part in held if part is not None and _is_users(part))


def _name_of(thing: Any) -> str:
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None)
    return name if isinstance(name, str) and name else f"a {type(thing).__name__}"


def _has_attribute(thing: Any, name: str) -> bool:
    """Return whether `thing` has an attribute, without running code of its class."""
    return inspect.getattr_static(thing, name, _EMPTY) is not _EMPTY


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for base in type(thing).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                yield name, getattr(thing, name)


def _methods(cls: type) -> Iterator[types.FunctionType]:
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else inspect.unwrap(value) if callable(value) else None
        if isinstance(function, types.FunctionType) and name not in _CONSTRUCTORS:
            yield function


def _changes_itself(method: types.FunctionType) -> bool:
    """Return whether a method assigns attributes or items of its first argument. Assumed where it has no source."""
    if is_library(method.__code__.co_filename) or _is_generated(method):
        return False
    function_names = read_code(method)
    return not function_names.has_source or not function_names.written.isdisjoint(method.__code__.co_varnames[:1])


def _is_generated(function: types.FunctionType) -> bool:
    """Return whether a library generated the function, as `dataclass` does."""
    return function.__code__.co_filename.startswith("<") and function.__name__.startswith("__")


def _is_hidden(name: str) -> bool:
    return name.startswith(("__", "_abc_", "model_"))


def _is_users(value: Any) -> bool:
    """Return whether a value is user code, or an object of a user's class."""
    if isinstance(value, types.FunctionType):
        return not is_library(value.__code__.co_filename) or value.__closure__ is not None
    if isinstance(value, types.MethodType):
        return _is_users(value.__func__) or _is_users(value.__self__)
    cls: type = value if isinstance(value, type) else type(value)
    return not is_library(_file_of(cls))


def _is_users_module(module: types.ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and not is_library(path)


def _would_be_users(name: str, function: types.FunctionType) -> bool:
    """Return whether importing `name` would run a file of the user's."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(name.partition(".")[0] or function.__globals__.get("__package__") or "")
    except (ImportError, ValueError):
        return True
    return spec is not None and (spec.origin is None or not is_library(spec.origin))


def _file_of(cls: type) -> str:
    """Return the source file of a class. A class written in C or part of Python counts as `<frozen>`."""
    module = sys.modules.get(cls.__module__)
    if module is None or module.__name__ == "__main__":
        return ""
    return getattr(module, "__file__", None) or "<frozen>"


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def _items(container: Any) -> Iterator[Any]:
    yield from container.values() if isinstance(container, dict) else container


def _is_constant(value: Any, depth: int) -> bool:
    """Return whether everything in `value` at `depth` levels inside it, or deeper, is immutable."""
    if depth > 0 and type(value) in _CONTAINERS:
        return all(_is_constant(item, depth - 1) for item in _items(value))
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(item, depth - 1) for item in cast("Iterable[Any]", value))
    code = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
    return isinstance(value, (*code, *_IMMUTABLE)) or type(value).__module__ in _IMMUTABLE_MODULES


def _depth_of(name: str, container: Any, function_names: FunctionNames) -> int:
    """Return the smallest depth at which a function lets a part of a container escape."""
    depth = function_names.escape_depth.get(name, _DEEPEST)
    return min(depth, 1) if name in function_names.iterated and not isinstance(container, dict) else depth


def _leaves(value: Any) -> Iterator[Any]:
    """Yield all non-container values in nested containers."""
    if type(value) in _CONTAINERS or isinstance(value, tuple | frozenset):
        for item in _items(value):
            yield from _leaves(item)
    else:
        yield value


def code_held_by(thing: Any) -> list[Any]:
    """Return the functions that an object holds, at any depth, and the user's classes of the objects in it.

    A deep copy shares exactly these with the original.
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}
    waiting: list[Any] = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (types.ModuleType, str, bytes, int, float)):
            continue
        seen[id(one)] = one
        if isinstance(one, types.FunctionType | type):
            found.append(one)
        elif type(one) in _WRAPPERS:
            waiting.extend(_WRAPPERS[type(one)](one))
        elif isinstance(one, Mapping):
            waiting.extend(cast("Mapping[Any, Any]", one).values())
        elif isinstance(one, list | tuple | set | frozenset):
            waiting.extend(cast("Iterable[Any]", one))
        else:
            found.append(type(one))
            waiting.extend(value for _, value in _attributes(one))
    return [one for one in found if _is_users(one)]
