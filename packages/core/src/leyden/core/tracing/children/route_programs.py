"""Routing for programs that an agent starts with `subprocess`, `os` or an event loop of uvloop.

asyncio, anyio and trio start programs with `subprocess.Popen`. For the environment see `environment`.
"""

import os
import shlex
from collections.abc import Callable, Sequence
from inspect import signature
from types import ModuleType
from typing import Any, cast

from leyden.core.tracing.children.environment import child_environment
from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings

_OS = ("posix_spawn", "posix_spawnp", "execv", "execve", "system")
WRAPPED = {
    "subprocess": (("Popen", "__init__"),),
    "os": tuple(("", name) for name in _OS if hasattr(os, name) and os.name == "posix"),
    "uvloop": (("Loop", "subprocess_exec"), ("Loop", "subprocess_shell")),
}


def wrap(library: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper of a function that starts a program."""
    return _WRAPPERS[name](original)


def _popen(original: Callable[..., None]) -> Callable[..., None]:
    parameters = signature(original)

    @hidden_from_warnings
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = parameters.bind(self, *args, **kwargs)
        except TypeError:  # `Popen` raises the error itself
            return original(self, *args, **kwargs)
        arguments = bound.arguments
        program = None if arguments.get("shell") else _words(arguments["args"], arguments.get("executable"))
        environment = child_environment(program, arguments.get("env"))
        if environment is not None:
            arguments["env"] = environment
        return original(*bound.args, **bound.kwargs)

    return __init__


def _spawn(original: Callable[..., int]) -> Callable[..., int]:
    def posix_spawn(path: Any, argv: Any, env: Any, /, **kwargs: Any) -> int:
        return original(path, argv, child_environment(_words(argv, path), env) or env, **kwargs)

    return posix_spawn


def _execv(original: Callable[..., Any]) -> Callable[..., Any]:
    def execv(path: Any, argv: Any, /) -> Any:
        environment = child_environment(_words(argv, path), None)
        return original(path, argv) if environment is None else os.execve(path, argv, environment)

    return execv


def _execve(original: Callable[..., Any]) -> Callable[..., Any]:
    def execve(path: Any, argv: Any, env: Any) -> Any:
        return original(path, argv, child_environment(_words(argv, path), env) or env)

    return execve


def _system(original: Callable[..., int]) -> Callable[..., int]:
    def system(command: Any) -> int:
        environment = child_environment(None, None)
        if environment is None:
            return original(command)
        process = os.posix_spawn("/bin/sh", ["sh", "-c", command], environment)
        return os.waitpid(process, 0)[1]

    return system


def _loop_exec(original: Callable[..., Any]) -> Callable[..., Any]:
    def subprocess_exec(self: Any, protocol_factory: Any, *program: Any, **kwargs: Any) -> Any:
        environment = child_environment(_words(program, kwargs.get("executable")), kwargs.get("env"))
        return original(self, protocol_factory, *program, **kwargs | ({"env": environment} if environment else {}))

    return subprocess_exec


def _loop_shell(original: Callable[..., Any]) -> Callable[..., Any]:
    def subprocess_shell(self: Any, protocol_factory: Any, command: Any, **kwargs: Any) -> Any:
        environment = child_environment(None, kwargs.get("env"))
        return original(self, protocol_factory, command, **kwargs | ({"env": environment} if environment else {}))

    return subprocess_shell


def _words(arguments: Any, executable: Any) -> Sequence[str] | None:
    """Return the words of a command line, with the real executable first. None where they cannot be determined."""
    if isinstance(arguments, str | bytes | os.PathLike):
        line = os.fsdecode(cast("str", arguments))
        words = [line] if os.name == "posix" else shlex.split(line, posix=False)
    else:
        words = [os.fsdecode(word) for word in arguments]
    if executable is not None and not isinstance(executable, int):  # `os.execve` also takes an open file
        words[:1] = [os.fsdecode(executable)]
    return words or None


_WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "__init__": _popen,
    "posix_spawn": _spawn,
    "posix_spawnp": _spawn,
    "execv": _execv,
    "execve": _execve,
    "system": _system,
    "subprocess_exec": _loop_exec,
    "subprocess_shell": _loop_shell,
}
