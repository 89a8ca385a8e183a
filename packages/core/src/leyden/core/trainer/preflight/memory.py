"""Memory check before anything is loaded: compares the memory that a run needs with the free memory."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from leyden.core.policy.options import TOKEN_BUDGET
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight.report import CheckResult, failure, ok, warning

if TYPE_CHECKING:
    from leyden.core.policy.size import PolicySize

TOKENS_OF_A_CALL = 2048
"""Assumed tokens of a call, prompt and response together, if the context length allows as many."""
MOST_AT_ONCE = 64
"""Maximum number of calls that the embedded engine decodes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Memory need of a run, in bytes by purpose."""

    certain: dict[str, int]
    """Memory that every run of this configuration needs."""
    likely: dict[str, int]
    """Memory that depends on the length and the number of concurrent calls."""

    @property
    def least(self) -> int:
        """Minimum number of bytes that the run needs."""
        return sum(self.certain.values())

    @property
    def all(self) -> int:
        """Expected number of bytes that the run needs."""
        return self.least + sum(self.likely.values())

    def described(self) -> str:
        """Return as text every part that is at least a tenth of the total."""
        parts = sorted((self.certain | self.likely).items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {gibibytes(size)}" for name, size in parts if size >= self.all / 10)


def memory_need(
    config: RunConfig, options: Sequence[Any], sizes: "Sequence[PolicySize]", frozen: "Sequence[PolicySize]"
) -> MemoryNeed:
    """Return the memory need of a run, without the agents' processes.

    `sizes` are those of the trained policies. `options` are the training options of each, as far as it is updated by
    Leyden's own updater. One policy is updated at a time, and all of them answer calls.
    """
    needs = [_need_of_one(config, own, size) for own, size in zip(options, sizes, strict=True)]
    certain, likely = Counter[str](), Counter[str]()
    for need in needs:
        certain.update(need.certain)
        likely.update(need.likely)
    certain["frozen policies"] = sum(other.weights for other in frozen)
    return MemoryNeed(certain=certain, likely={**likely, **_activations(options, sizes)})


def _activations(options: Sequence[Any], sizes: "Sequence[PolicySize]") -> dict[str, int]:
    from leyden.core.policy.size import LOGITS

    budgets = [getattr(own, "token_budget", None) or TOKEN_BUDGET for own in options]
    most = max(size.activations(budget) for budget, size in zip(budgets, sizes, strict=True))
    return {f"activations of {max(budgets):,} tokens": most + LOGITS}


def _need_of_one(config: RunConfig, options: Any, size: "PolicySize") -> MemoryNeed:
    """Return the need of one trained policy, without the activations of its updates."""
    lora = getattr(options, "lora", None)
    trained = size.parameters if lora is None else size.adapters(lora.rank)
    reference = bool(getattr(options, "compares_with_reference", False)) and lora is None
    certain = {
        "weights": size.weights,
        "gradients": 4 * trained,
        "AdamW's moments": 8 * trained,
        "the engine's copy": _engines_copy(config, size),
        "the reference policy": size.weights if reference else 0,
        "the critic": size.weights + 12 * trained if _has_own_critic(options) else 0,
    }
    tokens = min(TOKENS_OF_A_CALL, size.context_length or TOKENS_OF_A_CALL)
    concurrent_calls = min(MOST_AT_ONCE, config.most_workers * config.concurrency)
    key_values = size.key_values * tokens * concurrent_calls
    likely = {f"keys and values of {concurrent_calls} calls of {tokens:,} tokens": key_values}
    return MemoryNeed(certain=certain, likely=likely)


def _engines_copy(config: RunConfig, size: "PolicySize") -> int:
    """Return the bytes of an engine's weights, and of the further copies that its products read."""
    from leyden.core.engine.embedded.linear import packs_weights

    if config.engine_precision == "int8":
        return size.weights + 3 * size.parameters
    packs = config.engine_precision == "float32" and packs_weights(size.parameters, config.device)
    return size.weights + (size.weights if packs else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory need of a run, and free memory of its device; None if the free memory is unknown."""

    need: MemoryNeed
    free: int | None

    def line(self, config: RunConfig) -> str:
        """Return both as one line of text."""
        left = "free memory unknown" if self.free is None else f"{gibibytes(self.free)} left"
        return f"memory: about {gibibytes(self.need.all)} needed, {left} on {_where(config)}"


def _where(config: RunConfig) -> str:
    return "the GPU" if config.device.startswith("cuda") else "this machine"


def check_memory(need: MemoryNeed, free: int | None, config: RunConfig) -> CheckResult:
    """Check that the memory the run needs is available."""
    where = f"{_where(config)} has"
    if free is None:
        seen = f"about {gibibytes(need.all)} are needed ({need.described()}); how much memory {where} left is unknown"
        return warning("memory", seen, "make sure that this much memory is free")
    seen = f"{gibibytes(free)} of memory {where} left, and about {gibibytes(need.all)} are needed: {need.described()}"
    if need.least > free:
        what = " with ".join(config.policies.values())
        least = f"{what} is too large: {gibibytes(need.least)} before a single token; {seen}"
        return failure("memory", least, "train a smaller policy, or adapters (--set lora.rank=16), or more memory")
    if need.all > free:
        change = "lower --set token_budget=..., or --concurrency"
        return warning("memory", seen, change)
    return ok("memory", seen)


def gibibytes(size: int) -> str:
    """Format a size for display."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _has_own_critic(options: Any) -> bool:
    critic: Any = getattr(options, "critic", None)
    return critic == "own" or (isinstance(critic, dict) and cast("dict[str, Any]", critic).get("name") == "own")
