"""Leyden: train the language model inside an agent that already exists, without changing the agent.

Names are loaded when first used, so that importing this package costs little and pulls in neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leyden.core.algorithm.base import Algorithm, Context
    from leyden.core.algorithm.dpo import DPO, DPOConfig
    from leyden.core.algorithm.language_model import ModelOptions
    from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
    from leyden.core.algorithm.prompts.apo import APO
    from leyden.core.algorithm.prompts.apo_options import APOConfig
    from leyden.core.algorithm.prompts.budget import BudgetOptions
    from leyden.core.algorithm.prompts.gepa import GEPA, GEPAConfig
    from leyden.core.algorithm.sft import SFT, SFTConfig
    from leyden.core.algorithm.side_by_side import Side, SideBySide, SideBySideConfig
    from leyden.core.algorithm.stages import Stage, Stages, StagesConfig
    from leyden.core.algorithm.verl.algorithm import VERL, VERLConfig
    from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
    from leyden.core.data.resources import LLM, NamedResources, PromptTemplate, ResourcesUpdate
    from leyden.core.data.rollout import (
        Attempt,
        AttemptedRollout,
        Dataset,
        EnqueueRollout,
        Rollout,
        RolloutConfig,
        Task,
    )
    from leyden.core.data.sampling import Sampling
    from leyden.core.data.span import Span
    from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
    from leyden.core.data.worker import Worker
    from leyden.core.engine.base import Engine
    from leyden.core.engine.vllm.options import VllmOptions
    from leyden.core.errors import LeydenError, PromptError, UsageError
    from leyden.core.policy.options import LoraOptions
    from leyden.core.runner.adapters.base import Adapter
    from leyden.core.runner.adapters.lit_agent import LitAgent
    from leyden.core.runner.adapters.rollout_function import rollout
    from leyden.core.runner.adapters.vote import Vote
    from leyden.core.runner.attempts.hooks import Hook
    from leyden.core.runner.commands.command import CommandAgent
    from leyden.core.server.client import LightningClient, RunHandle
    from leyden.core.server.lightning_server import LightningServer
    from leyden.core.store.base import LightningStore
    from leyden.core.store.open import open_store
    from leyden.core.tracing.emit import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_observation,
        emit_reward,
        operation,
    )
    from leyden.core.tracing.production.capture import capture
    from leyden.core.trainer.export.export import Exported, export_run
    from leyden.core.trainer.monitoring.logs import setup_logging
    from leyden.core.trainer.preflight.report import CheckReport
    from leyden.core.trainer.run_folder.report import RunReport
    from leyden.core.trainer.trainer import Trainer
    from leyden.core.trajectory.select import Selector
    from leyden.core.trajectory.trace_to_messages import TraceToMessages

_HOME = {
    "APO": "algorithm.prompts.apo",
    "APOConfig": "algorithm.prompts.apo_options",
    "Adapter": "runner.adapters.base",
    "Algorithm": "algorithm.base",
    "Attempt": "data.rollout",
    "AttemptedRollout": "data.rollout",
    "BudgetOptions": "algorithm.prompts.budget",
    "CheckReport": "trainer.preflight.report",
    "CommandAgent": "runner.commands.command",
    "Context": "algorithm.base",
    "DPO": "algorithm.dpo",
    "DPOConfig": "algorithm.dpo",
    "Dataset": "data.rollout",
    "Engine": "engine.base",
    "EnqueueRollout": "data.rollout",
    "Exported": "trainer.export.export",
    "GEPA": "algorithm.prompts.gepa",
    "GEPAConfig": "algorithm.prompts.gepa",
    "Hook": "runner.attempts.hooks",
    "LLM": "data.resources",
    "LeydenError": "errors",
    "LightningClient": "server.client",
    "LightningRL": "algorithm.lightning_rl",
    "LightningRLConfig": "algorithm.lightning_rl",
    "LightningServer": "server.lightning_server",
    "LightningStore": "store.base",
    "LitAgent": "runner.adapters.lit_agent",
    "LoraOptions": "policy.options",
    "ModelOptions": "algorithm.language_model",
    "NamedResources": "data.resources",
    "PromptComponent": "data.prompts.edits",
    "PromptEdits": "data.prompts.edits",
    "PromptError": "errors",
    "PromptTemplate": "data.resources",
    "ResourcesUpdate": "data.resources",
    "Rollout": "data.rollout",
    "RolloutConfig": "data.rollout",
    "RunHandle": "server.client",
    "RunReport": "trainer.run_folder.report",
    "SFT": "algorithm.sft",
    "SFTConfig": "algorithm.sft",
    "Sampling": "data.sampling",
    "Selector": "trajectory.select",
    "Side": "algorithm.side_by_side",
    "SideBySide": "algorithm.side_by_side",
    "SideBySideConfig": "algorithm.side_by_side",
    "Span": "data.span",
    "Stage": "algorithm.stages",
    "Stages": "algorithm.stages",
    "StagesConfig": "algorithm.stages",
    "Task": "data.rollout",
    "TraceToMessages": "trajectory.trace_to_messages",
    "Trainer": "trainer.trainer",
    "Trajectory": "data.transition",
    "TrajectoryGroup": "data.transition",
    "Transition": "data.transition",
    "UsageError": "errors",
    "VERL": "algorithm.verl.algorithm",
    "VERLConfig": "algorithm.verl.algorithm",
    "VllmOptions": "engine.vllm.options",
    "Vote": "runner.adapters.vote",
    "Worker": "data.worker",
    "capture": "tracing.production.capture",
    "emit_annotation": "tracing.emit",
    "emit_exception": "tracing.emit",
    "emit_message": "tracing.emit",
    "emit_object": "tracing.emit",
    "emit_observation": "tracing.emit",
    "emit_reward": "tracing.emit",
    "export_run": "trainer.export.export",
    "open_store": "store.open",
    "operation": "tracing.emit",
    "rollout": "runner.adapters.rollout_function",
    "setup_logging": "trainer.monitoring.logs",
}
"""Public name to the module it lives in."""

__all__ = [
    "APO",
    "DPO",
    "GEPA",
    "LLM",
    "SFT",
    "VERL",
    "APOConfig",
    "Adapter",
    "Algorithm",
    "Attempt",
    "AttemptedRollout",
    "BudgetOptions",
    "CheckReport",
    "CommandAgent",
    "Context",
    "DPOConfig",
    "Dataset",
    "Engine",
    "EnqueueRollout",
    "Exported",
    "GEPAConfig",
    "Hook",
    "LeydenError",
    "LightningClient",
    "LightningRL",
    "LightningRLConfig",
    "LightningServer",
    "LightningStore",
    "LitAgent",
    "LoraOptions",
    "ModelOptions",
    "NamedResources",
    "PromptComponent",
    "PromptEdits",
    "PromptError",
    "PromptTemplate",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RunHandle",
    "RunReport",
    "SFTConfig",
    "Sampling",
    "Selector",
    "Side",
    "SideBySide",
    "SideBySideConfig",
    "Span",
    "Stage",
    "Stages",
    "StagesConfig",
    "Task",
    "TraceToMessages",
    "Trainer",
    "Trajectory",
    "TrajectoryGroup",
    "Transition",
    "UsageError",
    "VERLConfig",
    "VllmOptions",
    "Vote",
    "Worker",
    "capture",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_observation",
    "emit_reward",
    "export_run",
    "open_store",
    "operation",
    "rollout",
    "setup_logging",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
