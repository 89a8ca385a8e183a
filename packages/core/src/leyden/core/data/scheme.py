"""`Schemes`: a registry of named strategies of one kind, each a class whose fields are its options.

A scheme is chosen by its name, or by a mapping of its `name` and its options, as YAML and the command line write it.
Options that are themselves schemes are given the same way.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

import msgspec

from leyden.core.errors import UsageError

T = TypeVar("T")
SchemeSettings = str | dict[str, Any]
"""A name, or `{name: ..., option: value, ...}`."""


class Schemes(Generic[T]):
    """Registry of the schemes of one kind: the built-in ones, and those that installed packages register.

    Packages register a scheme under an entry-point group. A scheme with options is a dataclass that checks them in
    `__post_init__`, and raises UsageError or ValueError.
    """

    def __init__(self, what: str, kind: type[T], group: str, built_in: Mapping[str, type[T]]) -> None:
        self.what = what
        """Name of the kind of scheme in messages."""
        self.kind = kind
        self.group = group
        """Entry-point group; an entry point cannot replace a built-in name."""
        self.built_in = dict(built_in)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted({*self.built_in, *(entry.name for entry in entry_points(group=self.group))})

    def make(self, settings: str | Mapping[str, Any] | T) -> T:
        """Return the scheme that `settings` describe; an instance of a scheme is returned unchanged.

        Raises UsageError, in one line, for an unknown name, an unknown option or a value that does not fit.
        """
        if isinstance(settings, self.kind):
            return settings
        if isinstance(settings, str):
            settings = {"name": settings}
        options = dict(cast("Mapping[str, Any]", settings)) if isinstance(settings, Mapping) else {}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise UsageError(
                f"{self.what} must be a name, or a mapping with a `name`, not {settings!r}; give its name, too"
            )
        kind = self._find(name)
        known = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else []
        if unknown := sorted(set(options) - set(known)):
            available = f"it has {', '.join(known)}" if known else "it has no options"
            raise UsageError(f"{self.what} {name!r} has no option {unknown[0]!r}; {available}")
        if not is_dataclass(kind):
            return kind()
        try:
            return cast("T", msgspec.convert(options, kind, dec_hook=self._nested))
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.what} {name!r}: {error}") from None

    def settings(self, scheme: T) -> dict[str, Any]:
        """Return settings from which `make` would build `scheme` again: plain values, with every option.

        Raises UsageError for a scheme that has no name in this registry.
        """
        name = next((name for name, kind in self.built_in.items() if kind is type(scheme)), None)
        if name is None:
            entries = entry_points(group=self.group)
            home = f"{type(scheme).__module__}:{type(scheme).__qualname__}"
            name = next((entry.name for entry in entries if entry.value == home), None)
        if name is None:
            raise UsageError(
                f"{type(scheme).__qualname__} is not a registered {self.what}; use one of {self._available_names()}"
            )
        options = fields(scheme) if is_dataclass(scheme) else ()
        return {"name": name} | {option.name: self._plain(getattr(scheme, option.name)) for option in options}

    def _find(self, name: str) -> type[T]:
        if name in self.built_in:
            return self.built_in[name]
        entry = next(iter(entry_points(group=self.group, name=name)), None)
        if entry is None:
            raise UsageError(f"unknown {self.what} {name!r}; use one of {self._available_names()}")
        try:
            found = entry.load()
        except Exception as error:
            raise UsageError(f"{self.what} {name!r} ({entry.value}) cannot be loaded: {error}") from error
        if not (isinstance(found, type) and issubclass(found, self.kind)):
            raise UsageError(f"{self.what} {name!r} ({entry.value}) is not a {self.kind.__name__}")
        return found

    def _available_names(self) -> str:
        return ", ".join(self.names())

    def _nested(self, kind: Any, value: Any) -> Any:
        """Build an option that is itself a scheme of this kind."""
        if kind is self.kind:
            return self.make(value)
        raise UsageError(f"{self.what}: an option of type {kind} cannot be set in a configuration")

    def _plain(self, value: Any) -> Any:
        if isinstance(value, self.kind):
            return self.settings(value)
        if isinstance(value, msgspec.Struct):
            return {name: self._plain(getattr(value, name)) for name in value.__struct_fields__}
        if isinstance(value, tuple | list):
            return [self._plain(member) for member in cast("list[Any]", value)]
        if isinstance(value, Mapping):
            return {key: self._plain(member) for key, member in cast("Mapping[str, Any]", value).items()}
        return msgspec.to_builtins(value)


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with dotted keys such as `credit.gamma` as nested mappings; later keys override earlier ones.

    A name with options becomes a mapping: `credit` `discounted` and `credit.gamma` 0.9 are `{"name": "discounted",
    "gamma": 0.9}`.
    """
    whole: dict[str, Any] = {}
    for key, value in config.items():
        *path, last = key.split(".")
        inner = whole
        for step in path:
            found = inner.get(step)
            if isinstance(found, Mapping):
                inner[step] = dict(cast("Mapping[str, Any]", found))
            else:
                inner[step] = {} if found is None else {"name": found}
            inner = inner[step]
        inner[last] = value
    return whole
