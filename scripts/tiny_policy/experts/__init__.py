"""Experts: for each example, a script that answers in the place of its agent's model. One module each.

An expert's mistakes are decisions that reinforcement learning can correct. It never errs in the format of a call or in
what it copies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tiny_policy.recording import Plan
from tiny_policy.training import RECIPE, Shape, Stage


class Draw(Protocol):
    """Draws plans of training tasks, none from a held-out share; the same seed gives the same plans."""

    def __call__(self, seed: int, count: int, *, erring: bool) -> list[Plan]:
        """Return `count` plans of an expert that errs at its known rates, or of a perfect one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Expert:
    """Who answers in the place of an agent's model, and how its policy is made from that."""

    agent: str
    """Reference of the agent, as `leyden train` takes it."""
    policy: Path
    """Folder of the shipped policy."""
    draw: Draw
    traces: int = 12000
    """Number of rollouts that the policy is made from."""
    shape: Shape = field(default_factory=Shape)
    recipe: tuple[Stage, ...] = RECIPE
    tool: Callable[[dict[str, Any]], str] | None = None
    """The agent's tool, if most traces are to be simulated with it; otherwise the agent is run for each of them."""
    vocabulary: int = 768
    """Largest size of the tokenizer's vocabulary."""


def load_expert(name: str) -> Expert:
    """Return the `EXPERT` of the module with this name."""
    return import_module(f"tiny_policy.experts.{name}").EXPERT


def expert_names() -> list[str]:
    """Return the names of all experts."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
