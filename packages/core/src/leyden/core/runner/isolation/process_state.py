"""Functions of Python and of common libraries that change the state of the calling process.

Examples are its working folder, its environment and its standard streams. Every rollout in the process would see the
change. Functions that change only a context or a thread, such as `decimal.localcontext`, do not count.
"""

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from leyden.core.runner.isolation.code_reading import FunctionNames

_CHANGING: Mapping[str, tuple[str, ...]] = {
    "asyncio": ("set_event_loop_policy",),
    "contextlib": ("chdir", "redirect_stderr", "redirect_stdout"),
    "gc": ("disable", "set_threshold"),
    "importlib": ("reload",),
    "locale": ("setlocale",),
    "logging": ("captureWarnings", "disable", "setLoggerClass"),
    "matplotlib": ("rc", "rc_context", "use"),
    "multiprocessing": ("set_start_method",),
    "numpy": ("seterr", "set_printoptions"),
    "numpy.random": ("seed", "set_state"),
    "os": ("chdir", "chroot", "dup2", "fchdir", "nice", "putenv", "setgid", "setuid", "umask", "unsetenv"),
    "pandas": ("option_context", "reset_option", "set_option"),
    "random": ("seed", "setstate"),
    "resource": ("setrlimit",),
    "signal": ("alarm", "setitimer", "signal"),
    "socket": ("setdefaulttimeout",),
    "sys": ("setprofile", "setrecursionlimit", "settrace"),
    "threading": ("setprofile", "settrace"),
    "time": ("tzset",),
    "torch": ("manual_seed", "set_default_device", "set_default_dtype", "set_num_threads"),
    "tracemalloc": ("start", "stop"),
    "unittest.mock": ("patch",),
    "warnings": ("catch_warnings", "filterwarnings", "resetwarnings", "showwarning", "simplefilter"),
}
"""Functions and classes, by module."""
_WHOLE = frozenset({"matplotlib.pyplot", "pylab", "turtle"})
"""Modules whose functions all use one object of the process, such as the current figure."""
_OF_ENVIRON = frozenset({"clear", "pop", "popitem", "setdefault", "update"})
_OF_LOGGERS = frozenset({"addFilter", "addHandler", "removeFilter", "removeHandler"})


def changed_by(function_names: FunctionNames, names: Mapping[str, Any]) -> list[str]:
    """Return the names of such functions that an analysed function may call, such as `os.chdir`.

    `names` are the globals of its module. A call is assumed where a module and a function's name both occur. A false
    report is preferred to a missed call.
    """
    found = {f"{module}.{name}" for module, name in _by_modules(function_names, names)}
    found |= {f"{module}.{name}" for module, name in _by_values(function_names, names)}
    changed = (called.split(".") for called in function_names.calls)
    found |= {
        f"os.environ.{words[-1]}" for words in changed if words[-2:-1] == ["environ"] and words[-1] in _OF_ENVIRON
    }
    found |= {f"a logger's {name}" for name in function_names.attributes & _OF_LOGGERS}
    return sorted(found)


def _by_modules(function_names: FunctionNames, names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield functions that are reached through a module that the function names or imports."""
    values = (names.get(name) for name in function_names.global_names)
    named = {value.__name__ for value in values if isinstance(value, types.ModuleType)} | function_names.imports
    for module, functions in (*_CHANGING.items(), *((module, ()) for module in _WHOLE)):
        if any(_leads_to(module, one, function_names.attributes) for one in named):
            yield from ((module, name) for name in functions if name in function_names.attributes)
            if not functions:
                yield module, "*"


def _leads_to(module: str, named: str, attributes: frozenset[str]) -> bool:
    """Return whether `module` is the named one, or a submodule of it that the code reaches by attributes."""
    if module == named:
        return True
    return module.startswith(f"{named}.") and attributes.issuperset(module[len(named) + 1 :].split("."))


def _by_values(function_names: FunctionNames, names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield functions that are named directly, as after `from os import chdir`."""
    values = [names[name] for name in function_names.global_names & names.keys()]
    for module, functions in _CHANGING.items():
        loaded = vars(sys.modules[module]) if module in sys.modules else {}
        yield from ((module, one) for one in functions if one in loaded and any(loaded[one] is v for v in values))
    for value in values:
        if callable(value) and getattr(value, "__module__", None) in _WHOLE:
            yield str(value.__module__), str(getattr(value, "__name__", "*"))
