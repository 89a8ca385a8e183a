"""`agentlightning.reward`: the emitters and readers of rewards.

Importing this module makes it the attribute `reward` of its package, in place of the decorator. It can therefore be
called as the decorator.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, TypeVar

from leyden.core.agent_lightning.emitter import (
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)

P = ParamSpec("P")
R = TypeVar("R")


class _Decorator(ModuleType):
    """This module's class."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Do what the decorator `reward` does."""
        return reward(function)


sys.modules[__name__].__class__ = _Decorator

__all__ = [
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "reward",
]
