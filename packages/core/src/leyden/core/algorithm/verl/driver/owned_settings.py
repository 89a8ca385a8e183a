"""Tables of what Leyden decides in VERL's configuration: estimators, keys that Leyden sets, values that are refused."""

from collections.abc import Mapping
from typing import Any

ESTIMATORS: Mapping[str, str] = {
    "gae": "gae",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
}
"""VERL's estimators to Leyden's, which count each rollout once, however many calls its agent made."""

_BY_ROW = "VERL's estimator counts a rollout once for each model call of its agent"

INSTEAD: Mapping[str, str] = {
    "gdpo": "weigh named rewards with leyden.credit {name: dimensions}",
    "gpg": _BY_ROW,
    "grpo_passk": _BY_ROW,
    "opo": _BY_ROW,
    "optimal_token_baseline": _BY_ROW,
    "remax": "it needs a greedy rollout of every task",
    "tir_optimal_token_baseline": _BY_ROW,
}
"""VERL's estimators that Leyden does not offer, with the reason or an alternative."""

POLICY = "actor_rollout_ref.model.path"
"""Key of the model to train."""

LORA_RANK, LORA_MERGE = "actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.merge"
"""Keys of LoRA: its rank, and whether replicas get whole weights instead of an adapter."""

OWNED: Mapping[str, str] = {
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "Leyden's runners make the rollouts",
    "data.train_files": "the run sets the tasks",
    "data.val_files": "the run sets the held-out tasks",
    "trainer.default_local_dir": "checkpoints are written to the run's folder",
    "trainer.resume_from_path": "`leyden train --resume NAME` continues from the run's last checkpoint",
    "trainer.resume_mode": "`leyden train --resume NAME` continues from the run's last checkpoint",
}
"""Keys that Leyden sets, and the reason."""

REPLACED = ("data.train_files", "data.val_files")
"""Those of these keys that a user's dictionary may still set, because scripts read the run's tasks from them."""

_REWARD = "the run's own reward function scores rollouts"
_TURNS = "the agent itself decides its turns"

RULES: Mapping[str, tuple[Any, str]] = {
    "actor_rollout_ref.actor.loss_agg_mode": (
        "token-mean",
        "VERL's other modes count model calls and padding; set leyden.normalisation to token, rollout or constant",
    ),
    "actor_rollout_ref.actor.loss_scale_factor": (None, "set leyden.normalisation and leyden.tokens_per_rollout"),
    "actor_rollout_ref.model.lora_adapter_path": (
        None,
        "version 0 of the run is the model as it is named; merge the adapter into the model first",
    ),
    "actor_rollout_ref.rollout.calculate_log_probs": (
        True,
        "Leyden needs the log-probabilities that the engine returns for a call",
    ),
    "actor_rollout_ref.rollout.mode": ("async", "agents send their calls to a server at different times"),
    "actor_rollout_ref.rollout.multi_turn.enable": (False, _TURNS),
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": (None, _TURNS),
    "algorithm.filter_groups.enable": (False, "groups without spread are dropped before VERL sees them"),
    "algorithm.rollout_correction.loss_type": (
        "ppo_clip",
        "VERL's V1 trainer does not read it; set actor_rollout_ref.actor.policy_loss to {loss_mode: bypass_mode, "
        "rollout_correction: {loss_type: reinforce}}",
    ),
    "algorithm.use_kl_in_reward": (
        False,
        "advantages are made from credit, not from tokens' rewards; set actor_rollout_ref.actor.use_kl_loss",
    ),
    "algorithm.use_pf_ppo": (False, "only VERL's own gae reads it"),
    "data.custom_cls.path": (None, "the run sets the tasks"),
    "reward.custom_reward_function.path": (None, _REWARD),
    "reward.reward_model.enable": (False, _REWARD),
    "custom_reward_function.path": (None, _REWARD),
    "reward_model.enable": (None, _REWARD),
    "distillation.enabled": (False, "a run with Leyden has no teacher model"),
    "trainer.v1.separate_async.hybrid_rollout.enable_switch": (
        False,
        "Leyden is not tested with GPUs that switch between training and serving within a step",
    ),
    "trainer.use_v1": (True, "Leyden passes its rollouts to VERL's V1 trainer"),
}
"""Keys that must have one value with Leyden, and why; checked only where the user sets them."""

CHANGEABLE: tuple[str, ...] = (
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.rollout.max_num_batched_tokens",
    "actor_rollout_ref.rollout.max_num_seqs",
    "critic.ppo_max_token_len_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "data.max_prompt_length",
    "data.max_response_length",
)
"""Keys about memory and row sizes, which may change when a run is resumed, because its checkpoint still fits."""

UNSCALED: Mapping[str, str] = {
    "clip_cov": "is not proportional to the advantage",
    "dro": "is not proportional to the advantage",
    "geo_mean": "weighs every model call the same",
    "kl_cov": "is not proportional to the advantage",
    "sapo": "weighs every model call the same",
}
"""VERL's losses in which the advantage does not scale the weight of a token, and why."""
