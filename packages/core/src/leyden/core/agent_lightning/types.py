"""Data types of Agent Lightning 0.3 by their names there: mostly Leyden's own, which have the same fields.

They are msgspec structs: `msgspec.json.encode(one)` and `msgspec.to_builtins(one)` take the place of pydantic's
`model_dump_json` and `model_dump`.
"""

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from leyden.core.agent_lightning.replaced import lookup
from leyden.core.data import semconv
from leyden.core.data.page import Page as PaginatedResult
from leyden.core.data.resources import LLM, NamedResources, PromptTemplate, Resource, ResourcesUpdate
from leyden.core.data.resources import LLM as ProxyLLM
from leyden.core.data.resources import Resource as ResourceUnion
from leyden.core.data.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Dataset,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
)
from leyden.core.data.rollout import EnqueueRollout as EnqueueRolloutRequest
from leyden.core.data.span import Attribute as AttributeValue
from leyden.core.data.span import Attributes, Span, StatusCode
from leyden.core.data.span import Span as SpanLike
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.runner.adapters.lit_agent import RolloutResult as RolloutRawResult
from leyden.core.runner.attempts.hooks import Hook

TaskInput: TypeAlias = Any
"""One row of a dataset: any value that JSON can hold."""


class Triplet(msgspec.Struct, kw_only=True):
    """One model call of an agent: what it read, what it answered, and the reward that it earned."""

    prompt: Any
    """`token_ids`, and `raw_content`, the messages."""
    response: Any
    """`token_ids`, `logprobs` of these tokens, and `raw_content`, the messages."""
    reward: float | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """`response_id`, `agent_name` and `node`."""


class RewardPydanticModel(msgspec.Struct, frozen=True, kw_only=True):
    """One named number of a reward. Its name is that of the original; it is a msgspec struct."""

    name: str
    value: float


class SpanNames(StrEnum):
    """Names of the spans that emitters write."""

    REWARD = semconv.REWARD
    MESSAGE = semconv.MESSAGE
    OBJECT = semconv.OBJECT
    EXCEPTION = semconv.EXCEPTION


class SpanAttributeNames(StrEnum):
    """Attributes of the spans that `emit_message` and `emit_object` write."""

    MESSAGE = semconv.CONTENT
    OBJECT = semconv.CONTENT


__all__ = [
    "LLM",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Dataset",
    "EnqueueRolloutRequest",
    "Hook",
    "NamedResources",
    "PaginatedResult",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "RewardPydanticModel",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "Span",
    "SpanAttributeNames",
    "SpanLike",
    "SpanNames",
    "StatusCode",
    "TaskInput",
    "Triplet",
    "Worker",
    "WorkerStatus",
]

__getattr__ = lookup("types")
