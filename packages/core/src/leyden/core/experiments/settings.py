"""Settings of the runs of an experiment: overrides on top of a run file, prepared folders, and what has changed."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

JOINED = ("algorithm_config", "runners", "sampling", "vllm")
"""Mappings whose keys are overridden one by one; any other setting is replaced as a whole."""
WITH_FOLDERS = ("policy", "frozen", "algorithm_config", "tasks", "held_out")
"""Settings in which `$NAME` stands for the folder of a preparation."""
USUAL = "lightning_rl"
_REFERENCE = re.compile(r"\$([A-Za-z][A-Za-z0-9_-]*)")
_ABSENT = "nothing"

Settings = dict[str, Any]


def overridden(base: Mapping[str, Any], own: Mapping[str, Any]) -> Settings:
    """Return the settings `base` with those of `own` on top, as `leyden train` puts options on top of a run file.

    With another algorithm, the `algorithm_config` of `base` is not used.
    """
    found = {**base, **own}
    for name in JOINED:
        if isinstance(base.get(name), dict) and isinstance(own.get(name), dict):
            found[name] = {**base[name], **own[name]}
    if found.get("algorithm", USUAL) != base.get("algorithm", USUAL):
        found["algorithm_config"] = own.get("algorithm_config") or {}
    return found


def references(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the preparations that `settings` use, as `$NAME`, each once."""
    found: dict[str, None] = {}

    def note(text: str) -> str:
        found.update(dict.fromkeys(_REFERENCE.findall(text)))
        return text

    for name in WITH_FOLDERS:
        _each_text(settings.get(name), note)
    return list(found)


def with_folders(settings: Mapping[str, Any], folders: Mapping[str, Path]) -> Settings:
    """Return `settings` with the folder of each preparation in the place of its `$NAME`."""

    def put(text: str) -> str:
        return _REFERENCE.sub(lambda name: str(folders[name[1]]), text)

    return {name: _each_text(value, put) if name in WITH_FOLDERS else value for name, value in settings.items()}


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with `change` applied to every text in it, keys excepted."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(one, change) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_each_text(one, change) for one in cast("list[Any]", value)]
    return value


def wherever(value: Any, prepared: Sequence[str]) -> Any:
    """Return `value` without what is above the folders named in `prepared`, which changes if an experiment is moved."""
    above = re.compile(rf"[^\s:'\"]*/(?=(?:{'|'.join(map(re.escape, prepared))})(?:/|$|['\"]))")
    return _each_text(value, lambda text: above.sub("", text))


def used_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return SHA-256 digests of the local files that decide a run's results, by path.

    These are tasks, held-out sets, the files of agent and reward, and the weights of the policies.
    """
    given = settings.get("policy")
    policies: list[Any] = [*cast("dict[str, Any]", given).values()] if isinstance(given, dict) else [given]
    named: list[Any] = [settings.get("tasks"), *(held.get("source") for held in settings.get("held_out") or ())]
    named += [str(settings.get(name) or "").partition(":")[0] for name in ("agent", "reward")]
    named += [str(Path(policy) / "model.safetensors") for policy in policies if isinstance(policy, str)]
    paths = [Path(name) for name in named if isinstance(name, str) and name]
    return {str(path): _digest(path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()}


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    """Return the digest of a file, computed once for a size and a time of change: weights may be gigabytes."""
    del size, changed
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def difference(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str | None:
    """Return the first setting that differs, with both values, as text; None if all are equal."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return difference(cast("Settings", old), cast("Settings", new), f"{within}{name}.")
        return f"{within}{name} was {_shown(old)}, and is now {_shown(new)}"
    return None


def changed_file(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Return the first file that has another content than before, as text; None if there is none."""
    found = next((path for path in before if path in now and before[path] != now[path]), None)
    return None if found is None else f"{found} has another content"


def _shown(value: Any) -> str:
    return _ABSENT if value is None else repr(value)
