"""Runs an agent as its author would, in a process that has never heard of Leyden; started by `warm_server`."""

import asyncio
import importlib
import importlib.util
import inspect
import json
import socket
import sys
import traceback
from pathlib import Path
from types import CodeType
from typing import Any

from zoo_harness.observing import plain, same_text, state_of


def run(order: dict[str, Any]) -> None:
    """Load the module, evaluate the author's call, and write what came of it to `order["out"]`."""
    _redirect(order["ports"])
    seen: dict[str, Any] = {"result": None, "state": None, "error": None}
    try:
        module = _module(order["path"], order["reference"])
        names: dict[str, Any] = {**vars(module), "task": order["task"], "asyncio": asyncio}
        code = compile(order["author"], "<author>", "eval", flags=_AWAIT)
        seen["result"] = plain(_value(code, names))
    except BaseException as error:
        seen["error"] = {
            "type": type(error).__name__,
            "text": same_text(str(error)),
            "traceback": "".join(traceback.format_exception(error)),
        }
    if seen["error"] is None or "state" in order:
        try:
            seen["state"] = state_of(order["state"], order["path"], order["reference"])
        except Exception as error:
            seen["state"] = f"no state: {error!r}"
    Path(order["out"]).write_text(json.dumps(seen))


_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _value(code: CodeType, names: dict[str, Any]) -> Any:
    if not code.co_flags & inspect.CO_COROUTINE:
        return eval(code, names)

    async def main() -> Any:
        return await eval(code, names)

    return asyncio.run(main())


def _module(path: str, reference: str) -> Any:
    """Import the agent's file as `python file.py` would find it, or the module that `reference` names."""
    name = reference.rpartition(":")[0]
    if not name.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _redirect(ports: dict[str, int]) -> None:
    """Lead connections to hosts of the agent's own, such as `api.openai.com:443`, to the endpoint on this machine.

    It is done where the machine's name service and firewall would do it: in `getaddrinfo` and `connect`.
    """
    places = {host: f"127.9.9.{number}" for number, host in enumerate({one.rpartition(":")[0] for one in ports}, 1)}
    by_address = {(places[host.rpartition(":")[0]], int(host.rpartition(":")[2])): port for host, port in ports.items()}
    local = {int(host.rpartition(":")[2]): port for host, port in ports.items() if host.startswith("localhost:")}
    look_up, connect, connect_ex = socket.getaddrinfo, socket.socket.connect, socket.socket.connect_ex

    def looked_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name: str | None = host.decode() if isinstance(host, bytes) else host
        if name not in (None, "localhost", "127.0.0.1", *places.values()) and name not in places:
            raise socket.gaierror(socket.EAI_NONAME, f"{name} cannot be reached from the zoo")
        return look_up(places.get(name or "", name), port, *args, **kwargs)

    def led(address: Any) -> Any:
        if isinstance(address, str | bytes):  # of a Unix socket
            return address
        if address[:2] in by_address:
            return ("127.0.0.1", by_address[address[:2]])
        return ("127.0.0.1", local[address[1]]) if address[0] == "127.0.0.1" and address[1] in local else address

    socket.getaddrinfo = looked_up
    socket.socket.connect = lambda self, address: connect(self, led(address))
    socket.socket.connect_ex = lambda self, address: connect_ex(self, led(address))
