"""VERL's configuration: merges the user's dictionary with VERL's defaults and with the values that Leyden sets.

Every key that the user gives is applied, or refused with a message that names its path. VERL is imported only when a
configuration is composed.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from leyden.core.advantage.base import AdvantageEstimator
from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.verl.advantages import Estimation
from leyden.core.algorithm.verl.driver.batch_size_checks import check_shares
from leyden.core.algorithm.verl.driver.owned_settings import (
    ESTIMATORS,
    INSTEAD,
    LORA_MERGE,
    LORA_RANK,
    OWNED,
    POLICY,
    REPLACED,
    RULES,
    UNSCALED,
)
from leyden.core.algorithm.verl.driver.versions import check_versions
from leyden.core.credit.nesting import needs_values
from leyden.core.credit.registry import CREDIT
from leyden.core.data.scheme import SchemeSettings, nested
from leyden.core.errors import UsageError
from leyden.core.policy.update.entries import Normalisation

SECTION = "leyden"
"""Leyden's own section in the user's dictionary, and in `algorithm` of the composed configuration."""
MANAGER = "leyden.core.algorithm.verl.inside_verl.rollout_manager.RolloutManager"
"""Class that VERL uses to make its rollouts."""

Plain = dict[str, Any]


class LeydenOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `leyden` of the dictionary: choices that Leyden makes instead of VERL."""

    credit: SchemeSettings = "uniform"
    """Credit scheme, which assigns a return to each call: its name, or `{name: ..., option: value}`."""
    advantage: SchemeSettings | None = None
    """An advantage estimator, given the same way. Default: the one of algorithm.adv_estimator."""
    normalisation: Normalisation = "token"
    """What has equal weight in a step: every token, every rollout, or every token of every step (constant)."""
    tokens_per_rollout: int | None = None
    """Constant by which constant normalisation divides, in addition to the number of rollouts."""

    def __post_init__(self) -> None:
        constant = self.normalisation == "constant"
        if constant and not (self.tokens_per_rollout or 0) > 0:
            raise UsageError(
                "leyden.tokens_per_rollout: constant normalisation needs this number, and it must be above 0"
            )
        if self.tokens_per_rollout is not None and not constant:
            raise UsageError(f"leyden.tokens_per_rollout has no effect with {self.normalisation} normalisation")

    @classmethod
    def of(cls, section: object) -> "LeydenOptions":
        """Return the options in a section; raises UsageError for an unknown option or a wrong value."""
        try:
            found = msgspec.convert(section, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"{SECTION}: {error}") from None
        if needs_values(CREDIT.make(found.credit)):
            raise UsageError(
                "leyden.credit: VERL trains the critic, and credit cannot read it; set leyden.advantage to gae"
            )
        return found

    def estimation(self) -> Estimation:
        """Return how rows are compared; raises UsageError if no estimator was named."""
        if self.advantage is None:
            raise UsageError(f"leyden.advantage is missing; use one of {', '.join(ADVANTAGE.names())}")
        return Estimation(
            estimator=ADVANTAGE.make(self.advantage),
            normalisation=self.normalisation,
            tokens_per_rollout=self.tokens_per_rollout,
        )


def compose(config: Mapping[str, Any], overrides: Sequence[str] = (), owned: Mapping[str, Any] | None = None) -> Plain:
    """Return VERL's complete `ppo_trainer` configuration as plain values, with interpolations unresolved.

    `config` is a dictionary as in VERL's tutorials; its keys may contain dots. `overrides` are Hydra overrides, which
    win over `config`. `owned` holds the values that this run sets, in the same form; the user may repeat but not
    contradict them. Keys in `REPLACED`, which name the task files, are accepted but not passed to VERL.

    Raises UsageError, in one line with the path, for incompatible versions, a key that VERL does not have, a
    contradiction, and anything that VERL's own validation refuses.
    """
    check_versions()
    from leyden.core.algorithm.verl import verl_config

    nested_config = nested(config)
    options = LeydenOptions.of(nested_config.pop(SECTION, {}))
    composed = verl_config.default_config(overrides)
    overridden = [_path(override) for override in overrides]
    leaves = ((path, value) for path, value in _leaves(nested_config) if path not in REPLACED)
    given = {path: value for path, value in leaves if not _among(path, overridden)}
    for path, value in given.items():
        _check_known(composed, path, value, verl_config)
    for path, value in given.items():
        _put(composed, path, value)
    given_paths = {*given, *overridden}
    settled = dict(_leaves(nested(owned or {})))
    _check_owned(composed, given_paths, settled)
    resolved = verl_config.resolved(composed)
    _check_rules(resolved, given_paths)
    _check_loss(resolved, options)
    filled = _filled(resolved, given_paths, options, settled)
    for path, value in {**filled, **settled}.items():
        _put(composed, path, value)
    verl_config.validate(composed)
    check_shares(verl_config.resolved(composed))
    return composed


def _filled(resolved: Plain, given_paths: set[str], options: LeydenOptions, settled: Mapping[str, Any]) -> Plain:
    """Return the values that Leyden sets in every run, by path."""
    estimator = _estimator(resolved["algorithm"], given_paths, options)
    section = {
        "credit": CREDIT.settings(CREDIT.make(options.credit)),
        "advantage": ADVANTAGE.settings(estimator),
        "normalisation": options.normalisation,
        "tokens_per_rollout": options.tokens_per_rollout,
    }
    if "critic.enable" in given_paths and resolved["critic"]["enable"] != estimator.needs_values:
        wants = "needs one" if estimator.needs_values else "does not read one"
        raise UsageError(f"critic.enable contradicts the advantage estimator, which {wants}; remove critic.enable")
    filled: Plain = {
        "algorithm.adv_estimator": SECTION,
        f"algorithm.{SECTION}": section,
        "critic.enable": estimator.needs_values,
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class": MANAGER,
    }
    if _get(resolved, LORA_RANK):
        if LORA_MERGE in given_paths and not _get(resolved, LORA_MERGE):
            raise UsageError(
                f"{LORA_MERGE}: False is not possible with Leyden: agents' calls reach VERL's replicas over HTTP, "
                "where VERL serves no adapter; remove it"
            )
        filled[LORA_MERGE] = True
    if "critic.model.path" not in given_paths:
        filled["critic.model.path"] = settled.get(POLICY, _get(resolved, POLICY))
    return filled


def _estimator(algorithm: Mapping[str, Any], given_paths: set[str], options: LeydenOptions) -> AdvantageEstimator:
    """Return Leyden's estimator for VERL's estimator name and numbers, or for Leyden's own section."""
    name = algorithm["adv_estimator"]
    if options.advantage is not None:
        if "algorithm.adv_estimator" in given_paths:
            raise UsageError(
                f"algorithm.adv_estimator ({name}) and leyden.advantage ({options.advantage}) both name an estimator; "
                "remove one of them"
            )
        return ADVANTAGE.make(options.advantage)
    if name not in ESTIMATORS:
        reason = INSTEAD.get(name, "there is no such estimator")
        raise UsageError(f"algorithm.adv_estimator: {name!r}: {reason}; use one of {', '.join(ESTIMATORS)}")
    if name == "gae":
        return ADVANTAGE.make({"name": "gae", "gamma": algorithm["gamma"], "lam": algorithm["lam"]})
    for number in ("gamma", "lam"):
        if algorithm[number] != 1.0:
            fix = "set leyden.credit to {name: discounted, gamma: ...}" if number == "gamma" else "leave it out"
            raise UsageError(f"algorithm.{number} has no effect on {name}; {fix}")
    plain_grpo = ESTIMATORS[name] == "grpo" and not algorithm["norm_adv_by_std_in_grpo"]
    return ADVANTAGE.make("dr_grpo" if plain_grpo else ESTIMATORS[name])


def _check_owned(composed: Plain, given_paths: set[str], settled: Mapping[str, Any]) -> None:
    for path in given_paths:
        if path in settled and _get(composed, path) != settled[path]:
            raise UsageError(f"{path}: {_get(composed, path)!r} contradicts this run, which has {settled[path]!r}")
        if path in OWNED and path not in settled:
            raise UsageError(f"{path} cannot be set: {OWNED[path]}; remove it")


def _check_rules(resolved: Plain, given_paths: set[str]) -> None:
    for path, (allowed, reason) in RULES.items():
        if _among(path, list(given_paths)) and (found := _get(resolved, path)) != allowed:
            raise UsageError(f"{path}: {found!r} is not possible with Leyden: {reason}")


def _check_loss(resolved: Plain, options: LeydenOptions) -> None:
    """Raise UsageError for a loss that the normalisation does not affect, and for a correction that VERL ignores."""
    loss = _get(resolved, "actor_rollout_ref.actor.policy_loss.loss_mode")
    if loss in UNSCALED and options.normalisation != "token":
        raise UsageError(
            f"leyden.normalisation: {options.normalisation} does not work with "
            f"actor_rollout_ref.actor.policy_loss.loss_mode {loss}, which {UNSCALED[loss]}"
        )
    correction = resolved["algorithm"]["rollout_correction"]
    ignored = [name for name in ("rollout_is", "rollout_rs") if correction[name] is not None]
    if correction["bypass_mode"] and ignored:
        raise UsageError(
            f"algorithm.rollout_correction.{ignored[0]} has no effect with bypass_mode: VERL's V1 trainer then "
            "applies no correction; remove one of the two"
        )


def _check_known(composed: Plain, path: str, value: object, verl: Any) -> None:
    """Raise UsageError for a key that VERL does not have, and for a value in place of a section.

    A section may hold more keys than VERL's defaults show: those of its dataclass, or any keys if the default is empty.
    """
    node: Any = composed
    keys = path.split(".")
    for depth, key in enumerate(keys):
        if not isinstance(node, dict):
            _check_section(".".join(keys[:depth]), node)
            return
        section = cast("Plain", node)
        if key not in section:
            known = {*section, *(verl.field_names(section["_target_"]) if "_target_" in section else ())}
            if section and key not in known:
                raise UsageError(_unknown(".".join(keys[: depth + 1]), key, known))
            return
        node = section[key]
    if isinstance(node, dict) and node and not isinstance(value, Mapping):
        raise UsageError(f"{path}: {value!r} is a value, but VERL has a section under this key")


def _check_section(path: str, found: object) -> None:
    """Raise UsageError if options are given to a plain value; None and interpolations may be sections."""
    if found is not None and not (isinstance(found, str) and found.startswith("${")):
        raise UsageError(f"{path} is a value in VERL's configuration ({found!r}), not a section")


def _unknown(path: str, key: str, known: set[str]) -> str:
    close = get_close_matches(key, sorted(known), n=1)
    return f"{path}: VERL has no such key" + (f"; did you mean {close[0]}?" if close else "")


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every value that is not itself a section."""
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast("Mapping[str, Any]", value), f"{path}.")
        else:
            yield path, value


def _path(override: str) -> str:
    """Return the path that a Hydra override sets."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].strip()


def _among(path: str, given_paths: Sequence[str]) -> bool:
    """Return whether `path`, a section that contains it, or a key in it is in `given_paths`."""
    return any(f"{path}.".startswith(f"{given}.") or f"{given}.".startswith(f"{path}.") for given in given_paths)


def _get(config: Plain, path: str) -> Any:
    node: Any = config
    for key in path.split("."):
        node = cast("Plain", node).get(key) if isinstance(node, dict) else None
    return node


def _put(config: Plain, path: str, value: object) -> None:
    *keys, last = path.split(".")
    node: Any = config
    for key in keys:
        if not isinstance(node.get(key), dict):
            node[key] = {}
        node = node[key]
    node[last] = value
