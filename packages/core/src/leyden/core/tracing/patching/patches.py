"""`Patches`: replaces functions and methods of other packages' modules, and restores them."""

import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import getattr_static
from typing import Any

from wrapt import FunctionWrapper

Wrapper = Callable[[Any, Any, Any, Any], Any]
"""Called with the wrapped function (bound), its instance, the arguments and the keyword arguments."""

_ABSENT = object()


class Patches:
    """A set of replacements, in force until `undo`."""

    def __init__(self) -> None:
        self._enabled = True
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Set an attribute of a module or class."""
        own: Mapping[str, Any] = owner.__dict__
        self._replaced.append((owner, name, own.get(name, _ABSENT), replacement))
        setattr(owner, name, replacement)

    def function(self, home: Any, name: str, wrapper: Wrapper) -> None:
        """Wrap a function of the package of the module `home`, under the same name in all modules of the package."""
        original = getattr(home, name)
        replacement = self._wrapped(original, wrapper)
        package = home.__name__.partition("_")[0]
        for module in [module for module_name, module in list(sys.modules.items()) if module_name.startswith(package)]:
            if getattr(module, "__dict__", {}).get(name) is original:
                self.put(module, name, replacement)

    def methods(self, base: type, wrappers: Mapping[str, Wrapper]) -> None:
        """Wrap methods wherever `base` or a subclass defines them, including subclasses defined later."""
        for kind in _family(base):
            self._wrap_own(kind, wrappers)

        def begin_subclass(cls: type, **kwargs: Any) -> None:
            super(base, cls).__init_subclass__(**kwargs)
            self._wrap_own(cls, wrappers)

        self.put(base, "__init_subclass__", classmethod(begin_subclass))

    def method(self, kind: type, name: str, wrapper: Wrapper) -> None:
        """Wrap a method of one class only, even if it is inherited."""
        self.put(kind, name, self._wrapped(getattr_static(kind, name), wrapper))

    def undo(self) -> None:
        """Restore everything, except attributes that other code has replaced since.

        Wrappers of Leyden's that such code still calls only call the original.
        """
        self._enabled = False
        while self._replaced:
            owner, name, previous, replacement = self._replaced.pop()
            if owner.__dict__.get(name) is not replacement:
                continue
            if previous is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, previous)

    def _wrapped(self, original: Any, wrapper: Wrapper) -> Any:
        return FunctionWrapper(original, wrapper, enabled=lambda: self._enabled)

    def _wrap_own(self, kind: type, wrappers: Mapping[str, Wrapper]) -> None:
        for name, wrapper in wrappers.items():
            method = vars(kind).get(name)
            if callable(method) and not getattr(method, "__isabstractmethod__", False):
                self.put(kind, name, self._wrapped(method, wrapper))


def _family(base: type) -> Iterator[type]:
    seen = {base}
    pending = [base]
    while pending:
        yield (kind := pending.pop())
        below = [found for found in kind.__subclasses__() if found not in seen]
        seen.update(below)
        pending.extend(below)
