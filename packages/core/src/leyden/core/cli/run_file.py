"""Run file: reads the settings of a run from YAML, with the fields of `RunConfig`, as in a run's own `config.yaml`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from leyden.core.algorithm.registry import algorithm_class, option_names
from leyden.core.cli.options import read_yaml
from leyden.core.data.encoding import settings
from leyden.core.data.encoding.settings import SettingError, inner_settings
from leyden.core.errors import UsageError, did_you_mean
from leyden.core.masking import MASK
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.prompt_file import edits_from

DERIVED = ("sides", "acting")
"""Fields of `config.yaml` that a run derives from its algorithm; a run file may hold them without effect."""
JOINED = ("runners", "sampling", "vllm")
"""Fields whose parts may come from the file and from options; they are checked together."""
PROMPTS = ("prompts", "prompt_edits")
WRITTEN_AS = {
    "val": "held_out, a list of {name: NAME, source: FILE}",
    "reward_weight": "reward_weights, a mapping",
    "attribute_match": "attribute_match, a mapping",
    "hook": "hooks, a list",
    "timeout": "timeout_seconds",
    "sampled_eval": "evaluate_sampled",
    "route": "routes, a list of mappings with the key to",
    "backend": "algorithm: verl",
    "set": "algorithm_config, a mapping",
    "provider_key_env": "key_env in provider",
    "allow_host": "allow_hosts in runners, a list",
}
"""Options of the command line whose field has another name: what to write in a run file instead."""
VERLS = ("actor_rollout_ref", "critic", "data", "trainer")
"""Sections of VERL's own configuration."""


def read_run_file(path: Path) -> dict[str, Any]:
    """Return the settings in a run file.

    Raises UsageError, with one line, if the file cannot be read, has an unknown setting, or was written by a run whose
    settings cannot be given again: a secret, which `config.yaml` does not keep, or a live object of a Python program.
    """
    found = read_yaml(path)
    check_settings(path, found)
    return {name: value for name, value in found.items() if name not in DERIVED}


def check_settings(path: Path | str, found: Mapping[str, Any]) -> None:
    """Raise UsageError, with one line, for settings that `read_run_file` refuses.

    `path` is the file, and where in it the settings are, if they are a part of it.
    """
    check_names(path, found, RunConfig)
    types = get_type_hints(RunConfig)
    for name, value in found.items():
        if name not in PROMPTS:  # prompts with a secret are refused when a run begins, so no mask stands in them
            _check_masks(path, name, value)
        if name == "prompt_edits" and isinstance(value, dict):
            _check_prompt_edits(path, cast("dict[str, Any]", value))
        if name in JOINED:
            converted(path, value, dict[str, Any] | None, name)
        else:
            converted(path, value, types[name], name)
    agent = found.get("agent")
    if isinstance(agent, str) and agent.startswith("<"):
        raise UsageError(f"{path}: agent {agent} was an object of a Python program; give AGENT on the command line")


def _check_prompt_edits(path: Path | str, found: Mapping[str, Any]) -> None:
    """Raise PromptError for prompt edits that a prompt file could not hold, such as those with an unknown key."""
    for name, value in found.items():
        plain = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        edits_from({key: one for key, one in plain.items() if key != "type"}, f"{path}: prompt_edits.{name}")


def run_config(fields: Mapping[str, Any], path: Path | str | None) -> RunConfig:
    """Return the configuration with these fields, which came from the run file `path` where that is not None.

    Raises UsageError, with one line, for a value of another type than the field has.
    """
    return converted(path, fields, RunConfig)


def converted(path: Path | str | None, value: Any, kind: Any, name: str = "") -> Any:
    """Return `value` as a `kind`. Raises UsageError, with one line, that names the place in the file `path`."""
    try:
        return settings.converted(value, kind)
    except SettingError as error:
        place = name + (f".{error.place}" if name and error.place and error.place[0] != "[" else error.place)
        raise UsageError(f"{'a setting' if path is None else path}: {place}: {error.text}") from None


def check_names(path: Path | str, found: Mapping[str, Any], kind: type[msgspec.Struct], within: str = "") -> None:
    """Raise UsageError for a setting that `kind` does not have."""
    types = get_type_hints(kind)
    for name, value in found.items():
        if name == kind.__struct_config__.tag_field:
            continue
        if name not in kind.__struct_fields__:
            if name in VERLS and kind is RunConfig:
                raise UsageError(f"{path}: {name} belongs to VERL's configuration, which needs --backend verl")
            advice = _place_of(str(name), found) if kind is RunConfig else ""
            advice = advice or did_you_mean(str(name).replace("-", "_"), kind.__struct_fields__, within)
            raise UsageError(f"{path}: there is no setting {within}{name}{advice}")
        for place, inner_found, inner in inner_settings(f"{within}{name}", value, types[name]):
            check_names(path, inner_found, inner, f"{place}.")


def _place_of(name: str, found: Mapping[str, Any]) -> str:
    """Return where a run file holds what it has at its top as `name`; empty if it holds no such setting."""
    name = name.replace("-", "_")
    if name in WRITTEN_AS:
        return f"; write {WRITTEN_AS[name]}"
    types = get_type_hints(RunConfig)
    for outer in JOINED:
        if name in types[outer].__struct_fields__:
            return f"; write it in {outer}, as {outer}: {{{name}: ...}}"
    algorithm = found.get("algorithm", "lightning_rl")
    if isinstance(algorithm, str) and name in option_names(algorithm_class(algorithm)):
        return f"; it is an option of the algorithm: write it in algorithm_config, as algorithm_config: {{{name}: ...}}"
    return ""


def _check_masks(path: Path | str, name: str, value: object) -> None:
    """Raise UsageError for a text in which `config.yaml` holds a mask in the place of a secret."""
    if isinstance(value, str) and MASK in value:
        raise UsageError(f"{path}: {name} held a secret, which the file does not keep; give it on the command line")
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = cast("dict[str, object]", value).values()
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    for one in inner:
        _check_masks(path, name, one)
