"""Environment of the programs that an agent starts: leads their model calls to the gateway.

A program of the same Python environment loads `start_hook` and is routed like its parent. Any other program finds the
gateway by its client's base URL, and receives no provider keys.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leyden.core.masking import PROVIDER_KEYS, without_own_tokens
from leyden.core.tracing.children.inherited import ENVIRONMENT, InheritedState
from leyden.core.tracing.context import OpenAttempt, current_attempt, is_outside
from leyden.core.tracing.wire import routing_decision
from leyden.core.tracing.wire.unsupported_clients import PROGRAMS

log = logging.getLogger("leyden.routing")

HOOK = str(Path(__file__).with_name("start_hook"))
PYTHON_PATH = "PYTHONPATH"
ATTEMPTS_OWN = frozenset(
    {
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "OPENAI_API_BASE",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    }
)
"""Variables that `with_gateway` replaces."""

_IGNORES_HOOK = re.compile(r"-[a-zA-Z]*[EIS]")
"""Options with which Python ignores its environment variables, or runs no `sitecustomize`."""

_warned: set[tuple[str, str]] = set()


def child_environment(program: Sequence[str] | None, given: Mapping[Any, Any] | None) -> dict[str, str] | None:
    """Return the environment for `program` where it must differ from `given` (None: this process's own).

    `program` is the words of the command line; None where a shell parses it. Returns None where `given` needs no
    change.
    """
    if not routing_decision.is_on():
        return None
    base = {os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if given is None else given).items()}
    if is_outside():
        return without_hook(base) if ENVIRONMENT in base else None
    attempt = current_attempt()
    if attempt is None and not routing_decision.fails_closed():
        return None
    hooked = with_hook(base, InheritedState.now())
    if attempt is None or attempt.fail_open or runs_hook(program):
        return hooked
    name = "a shell" if program is None else os.path.basename(program[0])
    attempt.extra.setdefault(PROGRAMS, set()).add(name)
    kept = sorted(name for name in hooked if PROVIDER_KEYS.fullmatch(name) and name not in ATTEMPTS_OWN)
    if kept:
        _warn_once(name, ", ".join(kept))
    return with_gateway(hooked, attempt)


def with_gateway(base: Mapping[str, str], attempt: OpenAttempt) -> dict[str, str]:
    """Return `base` without provider keys, with variables that lead clients of OpenAI and Anthropic to the gateway.

    Anthropic's base URL ends before the version. `ANTHROPIC_AUTH_TOKEN` is set only if `base` has it, because clients
    warn of two credentials.
    """
    variables = {name: value for name, value in without_own_tokens(base).items() if not PROVIDER_KEYS.fullmatch(name)}
    root = f"{attempt.gateway_url}/a/{attempt.token}"
    variables |= {name: f"{root}/v1" for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE")}
    variables |= {"ANTHROPIC_BASE_URL": root, "OPENAI_API_KEY": attempt.token, "ANTHROPIC_API_KEY": attempt.token}
    if "ANTHROPIC_AUTH_TOKEN" in base:
        variables["ANTHROPIC_AUTH_TOKEN"] = attempt.token
    host = urlsplit(attempt.gateway_url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):  # a proxy of this machine cannot reach a loopback address here
        hosts = variables.get(name, "").split(",")
        variables[name] = ",".join(filter(None, [*hosts, *([] if host in hosts else [host])]))
    return variables


def with_hook(base: Mapping[str, str], state: InheritedState) -> dict[str, str]:
    """Return `base` with the variables by which a Python child joins its attempt."""
    hooked = without_hook(base)
    path = os.pathsep.join(filter(None, [HOOK, hooked.get(PYTHON_PATH)]))
    return hooked | {PYTHON_PATH: path, ENVIRONMENT: msgspec.json.encode(state).decode()}


def without_hook(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` without the changes of `with_hook`."""
    variables = {name: value for name, value in base.items() if name != ENVIRONMENT}
    if HOOK in (path := variables.get(PYTHON_PATH, "").split(os.pathsep)):
        left = os.pathsep.join(entry for entry in path if entry != HOOK)
        variables |= {PYTHON_PATH: left} if left else {}
        if not left:
            del variables[PYTHON_PATH]
    return variables


def runs_hook(program: Sequence[str] | None) -> bool:
    """Return whether `program` is Python, or a Python script, of the environment in which Leyden is installed."""
    if not program:
        return False
    options = list(program[1:])
    while options and options[0].startswith("-") and options[0] not in ("-c", "-m"):
        if _IGNORES_HOOK.match(options.pop(0)):
            return False
    return _is_ours(os.fsdecode(program[0]))


@lru_cache(maxsize=256)
def _is_ours(program: str) -> bool:
    found = which(program)
    if found is None or os.path.dirname(os.path.abspath(found)) != os.path.dirname(os.path.abspath(sys.executable)):
        return False
    if os.path.basename(found).startswith("python"):
        return True
    try:
        with open(found, "rb") as file:
            first = file.readline(512)
    except OSError:  # executable, but not readable
        return False
    return first.startswith(b"#!") and runs_hook(first[2:].decode(errors="replace").split())


def _warn_once(program: str, keys: str) -> None:
    if (program, keys) not in _warned:
        _warned.add((program, keys))
        log.warning(
            "%s is started without %s, because it is another program whose model calls could reach a provider",
            program,
            keys,
        )
