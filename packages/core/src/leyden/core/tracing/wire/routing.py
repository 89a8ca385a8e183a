"""Wire routing: inside an open attempt, sends model calls to the gateway instead of their provider.

Each HTTP library is wrapped where it passes a request to its transport (`route_httpx`, `route_aiohttp`,
`route_requests`, ...), so clients made earlier are covered too. `route_processes` does the same in child processes.
`route_sdk_clients` records the hosts for which provider SDKs make clients.

The agent's own request keeps its URL and headers. Its credentials never leave the process.
"""

import logging
import sys
from collections.abc import Callable
from functools import partial, reduce
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

from leyden.core.tracing.patching.in_place import in_place_of
from leyden.core.tracing.wire import gateway_pool, routing_decision

log = logging.getLogger("leyden.routing")

LIBRARIES = {
    "httpx": "leyden.core.tracing.wire.route_httpx",
    "httpx2": "leyden.core.tracing.wire.route_httpx",
    "aiohttp": "leyden.core.tracing.wire.route_aiohttp",
    "requests": "leyden.core.tracing.wire.route_requests",
    "urllib3.connectionpool": "leyden.core.tracing.wire.route_urllib3",
    "http.client": "leyden.core.tracing.wire.route_http_client",
    "anthropic": "leyden.core.tracing.wire.route_sdk_clients",
    "groq": "leyden.core.tracing.wire.route_sdk_clients",
    "openai": "leyden.core.tracing.wire.route_sdk_clients",
    "together": "leyden.core.tracing.wire.route_sdk_clients",
    "multiprocessing.process": "leyden.core.tracing.children.route_processes",
    "multiprocessing.pool": "leyden.core.tracing.children.route_processes",
    "multiprocessing.spawn": "leyden.core.tracing.children.route_processes",
    "concurrent.futures.process": "leyden.core.tracing.children.route_processes",
    "subprocess": "leyden.core.tracing.children.route_programs",
    "os": "leyden.core.tracing.children.route_programs",
    "uvloop": "leyden.core.tracing.children.route_programs",
}
"""Leyden's routing module for each library. It is imported when the library is."""

_lock = Lock()
_installed = False
_hooked = False
_patched: dict[tuple[str, str, str], tuple[Any, Callable[..., Any], Callable[..., Any]]] = {}


def install(*, fail_closed: bool = False) -> None:
    """Start routing. A library that is imported later is routed from its import on.

    With `fail_closed` (in a runner's process) a model call without an open attempt fails as a connection error.
    Otherwise it goes to its provider. A second call changes only `fail_closed`.
    """
    global _installed, _hooked
    with _lock:
        _installed = True
        routing_decision.set_routing(True, fail_closed=fail_closed)
        for name in LIBRARIES:
            if name in sys.modules:
                _patch(name, sys.modules[name])
        hook, _hooked = not _hooked, True
    if hook:
        import wrapt

        for name in LIBRARIES:
            wrapt.register_post_import_hook(partial(_on_import, name), name)


def uninstall() -> None:
    """Undo `install` completely and close the connections to the gateway.

    A wrapper that another library has wrapped since stays in place and does nothing.
    """
    global _installed
    with _lock:
        _installed = False
        routing_decision.set_routing(False)
        for key, (owner, original, routed) in list(_patched.items()):
            name = key[2]
            if getattr(owner, name) is routed:
                setattr(owner, name, original)
                del _patched[key]
    gateway_pool.close()


def _on_import(library: str, module: ModuleType) -> None:
    with _lock:
        if _installed:
            _patch(library, module)


def _patch(library: str, module: ModuleType) -> None:
    route_module: Any = import_module(LIBRARIES[library])
    for path, name in route_module.WRAPPED[library]:
        key = (library, path, name)
        owner: Any = reduce(_attribute, path.split(".") if path else (), module)
        if getattr(route_module, "OPTIONAL", False) and not isinstance(owner, type):
            continue
        original = getattr(owner, name, None)
        if original is None:
            log.warning("%s.%s has an unexpected form, so its calls are not routed", library, path)
        elif key not in _patched:
            routed = in_place_of(original, route_module.wrap(module, name, original))
            setattr(owner, name, routed)
            _patched[key] = (owner, original, routed)


def _attribute(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)
