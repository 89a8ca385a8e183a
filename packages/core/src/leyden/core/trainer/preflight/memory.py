"""Check of memory, before anything is loaded: what the run needs against what is left. Knows nothing of rollouts."""

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
"""What a call is taken to hold, prompt and answer, where the model could hold more."""
MOST_AT_ONCE = 64
"""Calls that the embedded engine decodes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes by what they are for."""

    certain: dict[str, int]
    """What no run of this configuration goes without."""
    likely: dict[str, int]
    """What depends on how long calls are and how many are made at once."""

    @property
    def least(self) -> int:
        """Bytes without which the run cannot be."""
        return sum(self.certain.values())

    @property
    def all(self) -> int:
        """Bytes that it is expected to take."""
        return self.least + sum(self.likely.values())

    def told(self) -> str:
        """Every part that is a tenth of it or more."""
        parts = sorted((self.certain | self.likely).items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {gibibytes(size)}" for name, size in parts if size >= self.all / 10)


def memory_need(
    config: RunConfig, options: Sequence[Any], sizes: "Sequence[PolicySize]", frozen: "Sequence[PolicySize]"
) -> MemoryNeed:
    """What a run takes beside the agents' own processes.

    `sizes` are of the policies that are trained, and `options` what each is updated by, where that is done as ours do.
    One of them is updated at a time, and all of them answer calls.
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
    """What one policy takes that is trained, but for the activations of its updates."""
    lora = getattr(options, "lora", None)
    trained = size.parameters if lora is None else size.adapters(lora.rank)
    reference = bool(getattr(options, "compares_with_reference", False)) and lora is None
    certain = {
        "weights": size.weights,
        "gradients": 4 * trained,
        "AdamW's moments": 8 * trained,
        "the engine's copy": size.weights,
        "the reference policy": size.weights if reference else 0,
        "the critic": size.weights + 12 * trained if _has_own_critic(options) else 0,
    }
    held = min(TOKENS_OF_A_CALL, size.context_length or TOKENS_OF_A_CALL)
    together = min(MOST_AT_ONCE, config.workers * config.concurrency)
    likely = {
        f"keys and values of {together} calls of {held:,} tokens": size.key_values * held * together,
    }
    return MemoryNeed(certain=certain, likely=likely)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a run needs, and what is left where it will be; None: that cannot be told."""

    need: MemoryNeed
    free: int | None

    def line(self, config: RunConfig) -> str:
        """Both in a line, for the reader."""
        left = "what is left is not known" if self.free is None else f"{gibibytes(self.free)} left"
        return f"memory: about {gibibytes(self.need.all)} needed, {left} on {_where(config)}"


def _where(config: RunConfig) -> str:
    return "the GPU" if config.device.startswith("cuda") else "this machine"


def check_memory(need: MemoryNeed, free: int | None, config: RunConfig) -> CheckResult:
    """What the run needs is there."""
    where = f"{_where(config)} has"
    if free is None:
        seen = f"about {gibibytes(need.all)} are needed ({need.told()}); what {where} left cannot be told"
        return warning("memory", seen, "make sure that there is so much")
    seen = f"{gibibytes(free)} of memory {where} left, and about {gibibytes(need.all)} are needed: {need.told()}"
    if need.least > free:
        what = " with ".join(config.policies.values())
        least = f"{what} is too large: {gibibytes(need.least)} before a single token; {seen}"
        return failure("memory", least, "train a smaller policy, or adapters (--set lora.rank=16), or more memory")
    if need.all > free:
        change = "lower --set token_budget=..., or --concurrency"
        return warning("memory", seen, change)
    return ok("memory", seen)


def gibibytes(size: int) -> str:
    """A size as people read it."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _has_own_critic(options: Any) -> bool:
    critic: Any = getattr(options, "critic", None)
    return critic == "own" or (isinstance(critic, dict) and cast("dict[str, Any]", critic).get("name") == "own")
