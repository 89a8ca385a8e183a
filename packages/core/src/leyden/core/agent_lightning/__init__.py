"""The public names of Agent Lightning 0.3, so that a program for it only changes its import.

`import leyden.core.agent_lightning as agl` takes the place of `import agentlightning as agl`, and
`leyden.core.agent_lightning.store` that of `agentlightning.store`. A name that has no meaning in Leyden raises
`ReplacedName`, an ImportError, with one line that names what replaces it. docs/migration.md has the table.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leyden.core.agent_lightning.replaced import lookup

if TYPE_CHECKING:
    from leyden.core.agent_lightning.adapter import (
        Adapter,
        LlmProxyTraceToTriplet,
        OtelTraceAdapter,
        TraceAdapter,
        TracerTraceToTriplet,
        TraceToMessages,
        TraceToTripletBase,
    )
    from leyden.core.agent_lightning.algorithm import (
        APO,
        VERL,
        Algorithm,
        Baseline,
        FastAlgorithm,
        algo,
    )
    from leyden.core.agent_lightning.emitter import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        find_final_reward,
        find_reward_spans,
        get_message_value,
        get_object_value,
        get_reward_value,
        get_rewards_from_span,
        is_reward_span,
        operation,
        reward,
    )
    from leyden.core.agent_lightning.env_var import (
        LightningEnvVar,
        resolve_bool_env_var,
        resolve_int_env_var,
        resolve_str_env_var,
    )
    from leyden.core.agent_lightning.litagent import (
        LitAgent,
        llm_rollout,
        prompt_rollout,
        rollout,
    )
    from leyden.core.agent_lightning.logging import (
        configure_logger,
    )
    from leyden.core.agent_lightning.logging import setup as setup_logging
    from leyden.core.agent_lightning.logging import setup_module as setup_module_logging
    from leyden.core.agent_lightning.runner import (
        LitAgentRunner,
        Runner,
    )
    from leyden.core.agent_lightning.store import (
        InMemoryLightningStore,
        LightningStore,
        LightningStoreCapabilities,
        LightningStoreClient,
        LightningStoreServer,
        LightningStoreStatistics,
    )
    from leyden.core.agent_lightning.tracer import (
        AgentOpsTracer,
        OtelTracer,
    )
    from leyden.core.agent_lightning.trainer import (
        Trainer,
    )
    from leyden.core.agent_lightning.types import (
        LLM,
        Attempt,
        AttemptedRollout,
        AttemptStatus,
        Attributes,
        AttributeValue,
        Dataset,
        EnqueueRolloutRequest,
        Hook,
        NamedResources,
        PaginatedResult,
        PromptTemplate,
        ProxyLLM,
        Resource,
        ResourcesUpdate,
        ResourceUnion,
        Rollout,
        RolloutConfig,
        RolloutMode,
        RolloutRawResult,
        RolloutStatus,
        Span,
        SpanAttributeNames,
        SpanLike,
        SpanNames,
        StatusCode,
        TaskInput,
        Triplet,
        Worker,
        WorkerStatus,
    )

_HOME = {
    "APO": "algorithm",
    "Adapter": "adapter",
    "AgentOpsTracer": "tracer",
    "Algorithm": "algorithm",
    "Attempt": "types",
    "AttemptStatus": "types",
    "AttemptedRollout": "types",
    "AttributeValue": "types",
    "Attributes": "types",
    "Baseline": "algorithm",
    "Dataset": "types",
    "EnqueueRolloutRequest": "types",
    "FastAlgorithm": "algorithm",
    "Hook": "types",
    "InMemoryLightningStore": "store",
    "LLM": "types",
    "LightningEnvVar": "env_var",
    "LightningStore": "store",
    "LightningStoreCapabilities": "store",
    "LightningStoreClient": "store",
    "LightningStoreServer": "store",
    "LightningStoreStatistics": "store",
    "LitAgent": "litagent",
    "LitAgentRunner": "runner",
    "LlmProxyTraceToTriplet": "adapter",
    "NamedResources": "types",
    "OtelTraceAdapter": "adapter",
    "OtelTracer": "tracer",
    "PaginatedResult": "types",
    "PromptTemplate": "types",
    "ProxyLLM": "types",
    "Resource": "types",
    "ResourceUnion": "types",
    "ResourcesUpdate": "types",
    "Rollout": "types",
    "RolloutConfig": "types",
    "RolloutMode": "types",
    "RolloutRawResult": "types",
    "RolloutStatus": "types",
    "Runner": "runner",
    "Span": "types",
    "SpanAttributeNames": "types",
    "SpanLike": "types",
    "SpanNames": "types",
    "StatusCode": "types",
    "TaskInput": "types",
    "TraceAdapter": "adapter",
    "TraceToMessages": "adapter",
    "TraceToTripletBase": "adapter",
    "TracerTraceToTriplet": "adapter",
    "Trainer": "trainer",
    "Triplet": "types",
    "VERL": "algorithm",
    "Worker": "types",
    "WorkerStatus": "types",
    "algo": "algorithm",
    "configure_logger": "logging",
    "emit_annotation": "emitter",
    "emit_exception": "emitter",
    "emit_message": "emitter",
    "emit_object": "emitter",
    "emit_reward": "emitter",
    "find_final_reward": "emitter",
    "find_reward_spans": "emitter",
    "get_message_value": "emitter",
    "get_object_value": "emitter",
    "get_reward_value": "emitter",
    "get_rewards_from_span": "emitter",
    "is_reward_span": "emitter",
    "llm_rollout": "litagent",
    "operation": "emitter",
    "prompt_rollout": "litagent",
    "resolve_bool_env_var": "env_var",
    "resolve_int_env_var": "env_var",
    "resolve_str_env_var": "env_var",
    "reward": "emitter",
    "rollout": "litagent",
    "setup_logging": "logging",
    "setup_module_logging": "logging",
}
"""Public name to the module it lives in."""
_OTHER_NAME = {"setup_logging": "setup", "setup_module_logging": "setup_module"}
"""Names that their module has under another name."""
_REPLACED = lookup("")
MODULES = frozenset(
    {
        *("adapter", "algorithm", "emitter", "env_var", "execution", "instrumentation", "litagent", "llm_proxy"),
        *("logging", "runner", "semconv", "store", "tracer", "trainer", "types", "verl"),
    }
)
"""Modules of the package, which are its attributes without being imported, as in the original."""

__all__ = [
    "APO",
    "LLM",
    "VERL",
    "Adapter",
    "AgentOpsTracer",
    "Algorithm",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Baseline",
    "Dataset",
    "EnqueueRolloutRequest",
    "FastAlgorithm",
    "Hook",
    "InMemoryLightningStore",
    "LightningEnvVar",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LitAgent",
    "LitAgentRunner",
    "LlmProxyTraceToTriplet",
    "NamedResources",
    "OtelTraceAdapter",
    "OtelTracer",
    "PaginatedResult",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "Runner",
    "Span",
    "SpanAttributeNames",
    "SpanLike",
    "SpanNames",
    "StatusCode",
    "TaskInput",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTripletBase",
    "TracerTraceToTriplet",
    "Trainer",
    "Triplet",
    "Worker",
    "WorkerStatus",
    "algo",
    "configure_logger",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "resolve_bool_env_var",
    "resolve_int_env_var",
    "resolve_str_env_var",
    "reward",
    "rollout",
    "setup_logging",
    "setup_module_logging",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use. Raises ReplacedName for a name that something else replaces."""
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        _REPLACED(name)
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), _OTHER_NAME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
