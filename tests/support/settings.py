"""What holds for a whole process, and that a test file has to leave as it found it."""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

ABSENT = "not there"

PATCHED: Mapping[str, tuple[str, ...]] = {
    "httpx": ("Client", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport"),
    "httpx2": ("Client", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport"),
    "aiohttp": ("ClientSession", "TCPConnector", "BaseConnector"),
    "requests": ("Session", "adapters.HTTPAdapter"),
    "pydantic": ("BaseModel",),
    "subprocess": ("Popen",),
    "multiprocessing.process": ("BaseProcess",),
    "multiprocessing.pool": ("Pool", "ThreadPool"),
    "concurrent.futures.process": ("ProcessPoolExecutor",),
}
"""Classes by module, of which routing and adapters replace attributes while they are switched on."""

KEPT_VARIABLES = (
    "PYTEST_CURRENT_TEST",
    "KMP_",  # OpenMP's, set by torch
    "TORCHINDUCTOR_",
    "TORCH_",
    "RAY_",  # set at Ray's import and first start
    "GRPC_",
    "LAZY_LEGACY_OP",  # tensordict's
    "VLLM_",
    "TOKENIZERS_PARALLELISM",  # CrewAI's knowledge, at its import
)
"""Beginnings of the names of environment variables that a library sets in its own process, once."""


def settings() -> dict[str, object]:
    """Return what is set, by name. A logger that is as loggers are made is left out."""
    found: dict[str, object] = {
        f"os.environ[{name!r}]": value for name, value in os.environ.items() if not name.startswith(KEPT_VARIABLES)
    }
    found["sys.path"] = tuple(path for path in sys.path if not path.startswith(sys.prefix))
    found["sys.argv"] = tuple(sys.argv)
    found["working folder"] = os.getcwd()
    found["file mode mask"] = _mask()
    found["garbage collector"] = (gc.isenabled(), gc.get_threshold(), gc.get_debug())
    found |= {f"handler of {number.name}": signal.getsignal(number) for number in _signals()}
    return {**found, **dict(_hooks()), **dict(_loggers()), **dict(_torch()), **dict(_patched())}


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return a line for each setting that is not as it was; what came with a library that was imported meanwhile is."""
    names = [name for name in {**before, **now} if before.get(name, ABSENT) != now.get(name, ABSENT)]
    return [
        f"{name} is {_shown(now.get(name, ABSENT))}, was {_shown(before.get(name, ABSENT))}"
        for name in names
        if name in before or name.startswith(("os.environ", "logger"))
    ]


def _shown(value: object) -> str:
    text = repr(value) if value != ABSENT else ABSENT
    return text if len(text) < 300 else f"{text[:297]}..."


def _signals() -> Iterable[signal.Signals]:
    """All but the one with which pytest-timeout ends a test."""
    return [number for number in signal.Signals if number is not signal.SIGALRM]


def _mask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _hooks() -> Iterator[tuple[str, object]]:
    """Hooks of tests and of Leyden: libraries set theirs when they are imported."""
    for name, hook in (("sys.excepthook", sys.excepthook), ("threading.excepthook", threading.excepthook)):
        module = getattr(hook, "__module__", "")
        yield name, hook if "test" in module or module.startswith("leyden") else "Python's or a library's"


def _loggers() -> Iterator[tuple[str, object]]:
    names = ["", *(name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == "leyden")]
    for name in names:
        logger = logging.getLogger(name)
        if not name or logger.level or logger.handlers or logger.disabled or not logger.propagate:
            yield f"logger {name or 'root'}", (logger.level, tuple(logger.handlers), logger.disabled, logger.propagate)


def _torch() -> Iterator[tuple[str, object]]:
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "is_grad_enabled"):
        yield "torch: threads", torch.get_num_threads()
        yield "torch: type", torch.get_default_dtype()
        yield "torch: gradients", torch.is_grad_enabled()
        yield "torch: deterministic", torch.are_deterministic_algorithms_enabled()


def _patched() -> Iterator[tuple[str, object]]:
    for where, owner in _owners():
        attributes: dict[str, object] = {**vars(owner)}
        for name, value in attributes.items():
            if callable(value) or isinstance(value, classmethod | staticmethod):
                yield f"{where}.{name}", value


def _owners() -> Iterator[tuple[str, Any]]:
    for owner in (threading.Thread, ThreadPoolExecutor, Future):
        yield f"{owner.__module__}.{owner.__name__}", owner
    for name, classes in PATCHED.items():
        module: Any = sys.modules.get(name)
        if module is None:
            continue
        for path in classes:
            owner: Any = module
            for part in path.split("."):
                owner = getattr(owner, part, None)
            if owner is not None:
                yield f"{name}.{path}", owner
