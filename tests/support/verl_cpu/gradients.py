"""VERL's own gradients of given rows, in a process of its own: `python -m verl_cpu.gradients FOLDER`.

In FOLDER: `policy`, a model, and `cases.pt`, by name the rows of a step and how they are compared. VERL's advantage
code, with Leyden's estimators registered, its padding rows and its FSDP2 worker, with Leyden's plug-in, do the rest;
`gradients.pt` is what they left. Only VERL's queue is replaced: by the rows themselves.
"""

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden.core.algorithm.verl.inside_verl import plugin, verl_queue, verl_trainer
from leyden.core.algorithm.verl.row_sampling import SAMPLING_FIELD

MICRO_BATCH = 4
"""Rows; what VERL fills its batches up to a multiple of."""

actor_config: Any = import_module("verl.workers.config")
padding: Any = import_module("verl.trainer.ppo.padding_utils")
tensordicts: Any = import_module("verl.utils.tensordict_utils")
multi: Any = import_module("verl.trainer.ppo.v1.utils")
protocol: Any = import_module("verl.protocol")
omegaconf: Any = import_module("omegaconf")
nesting: Any = import_module("verl.workers.utils.padding")
corrections: Any = import_module("verl.trainer.ppo.rollout_corr_helper")
nested: Any = torch.nested
assert plugin.__name__ in sys.modules

READ = ("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask", SAMPLING_FIELD)
"""Fields that VERL's worker reads of a row, whatever it does with it."""


class StoredRows:
    """Rows in the place of VERL's queue."""

    def __init__(self, keys: list[str], rows: Any) -> None:
        self.keys, self.rows = keys, rows

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        """Return fields of rows, as the queue does."""
        assert partition_id == "train"
        at = [self.keys.index(key) for key in keys]
        columns = {name: self.rows[name].unbind() for name in select_fields}
        return {
            name: nested.as_nested_tensor([rows[n] for n in at], layout=torch.jagged) for name, rows in columns.items()
        }


def worker(policy: str) -> Any:
    """Return VERL's training worker on the policy, whose optimizer changes nothing and cuts no gradient."""
    workers: Any = import_module("verl.workers.engine_workers")
    trainer_config: Any = import_module("verl.trainer.config")
    whole = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    made = workers.TrainingWorker(
        workers.TrainingWorkerConfig(
            model_type="language_model",
            model_config=actor_config.HFModelConfig(
                path=policy,
                use_remove_padding=False,
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=actor_config.FSDPEngineConfig(
                strategy="fsdp2",
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=MICRO_BATCH,
                infer_micro_batch_size_per_gpu=MICRO_BATCH,
                use_torch_compile=False,
                mixed_precision=whole,
                dtype="float32",
            ),
            optimizer_config=actor_config.FSDPOptimizerConfig(lr=0.0, clip_grad=1e9, total_training_steps=100),
            checkpoint_config=trainer_config.CheckpointConfig(),
        )
    )
    made.reset()
    return made


def loss(policy_loss: dict[str, Any]) -> Any:
    """Return VERL's loss with these settings of `actor.policy_loss`."""
    actor = actor_config.FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=MICRO_BATCH,
        ppo_micro_batch_size_per_gpu=MICRO_BATCH,
        clip_ratio_low=0.2,
        clip_ratio_high=0.3,
        loss_agg_mode="token-mean",
        policy_loss=actor_config.PolicyLossConfig(**policy_loss),
    )
    return partial(import_module("verl.workers.utils.losses").ppo_loss, config=actor)


def padded(keys: list[str], rows: list[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the rows with VERL's own padding rows behind them, at least one."""
    template, _ = padding.construct_minimal_padding_template(rows[0], {}, 0)
    template.pop("attention_mask")
    template["values"] = torch.zeros(1)
    template["uid"] = "pad0"
    more = MICRO_BATCH - len(rows) % MICRO_BATCH
    return [*keys, *(f"pad0_{n}_0" for n in range(more))], [*rows, *[template] * more]


def weighed(keys: list[str], rows: Any, leyden: dict[str, Any]) -> Tensor:
    """Let VERL ask Leyden's estimator for the advantages of a batch; return them as jagged rows."""
    names = ("response_mask", "rm_scores", "values")
    data = protocol.DataProto(batch=rows.select(*names).to_padded_tensor())
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array(list(rows["uid"]), dtype=object)
    verl_trainer.register()
    verl_queue.tq = StoredRows(keys, rows)
    algorithm = omegaconf.OmegaConf.create({"adv_estimator": "leyden", "leyden": leyden})
    found = multi.compute_advantage_for_multi_trajectories(
        data, batch_keys=keys, adv_estimator=algorithm.adv_estimator, config=algorithm
    )
    return nesting.response_to_nested(found.batch["advantages"], rows["response_mask"])


def correct(made: Any, rows: Any, correction: dict[str, Any] | None, temperature: float) -> list[Tensor]:
    """Write the log-probabilities that ratios are taken against, and the weights of VERL's correction, into the rows.

    Without a correction they are those of what served the calls, as VERL's bypass mode has it. With one, VERL computes
    them; the entropies of the same distributions are returned.
    """
    rows["old_log_probs"] = rows["rollout_log_probs"]
    if correction is None:
        return []
    batch = rows.select(*READ)
    lengths = rows["input_ids"].offsets().diff().tolist()
    tensordicts.assign_non_tensor(
        batch, compute_loss=False, calculate_entropy=True, temperature=temperature, global_token_num=lengths
    )
    found = made.infer_batch(batch)
    rows["old_log_probs"] = nesting.response_from_nested(found["log_probs"], rows["response_mask"])
    names = ("old_log_probs", "rollout_log_probs", "response_mask")
    data = protocol.DataProto(batch=rows.select(*names).to_padded_tensor())
    data, _ = corrections.compute_rollout_correction_and_add_to_batch(data, correction)
    if "rollout_is_weights" in data.batch:
        rows["rollout_is_weights"] = nesting.response_to_nested(data.batch["rollout_is_weights"], rows["response_mask"])
    return list(nesting.response_from_nested(found["entropy"], rows["response_mask"]).unbind())


def gradient(made: Any, rows: Any, temperature: float) -> dict[str, Tensor]:
    """Take one optimizer step of VERL's and return what it was taken along."""
    weights = [name for name in ("rollout_is_weights",) if name in rows]
    batch = rows.select(*READ, "old_log_probs", "advantages", *weights)
    tensordicts.assign_non_tensor(
        batch,
        calculate_entropy=False,
        global_batch_size=len(rows),
        mini_batch_size=len(rows),
        epochs=1,
        seed=1,
        dataloader_kwargs={"shuffle": False},
        temperature=temperature,
    )
    found: dict[str, Tensor] = {}
    step = made.engine.optimizer_step

    def noting() -> Any:
        # VERL clears the gradients before it returns.
        for name, parameter in made.engine.module.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad.full_tensor().clone()
        return step()

    made.engine.optimizer_step = noting
    made.train_mini_batch(batch)
    made.engine.optimizer_step = step
    return found


def main(folder: Path) -> None:
    """Compute the gradients of all cases."""
    made = worker(str(folder / "policy"))
    cases: dict[str, Any] = torch.load(folder / "cases.pt", weights_only=True)
    done: dict[str, Any] = {}
    for name, case in cases.items():
        keys, listed = padded(case["keys"], case["rows"])
        rows = tensordicts.list_of_dict_to_tensordict(listed)
        made.set_loss_fn(loss(case["policy_loss"]))
        entropies = correct(made, rows, case["correction"], case["temperature"])
        rows["advantages"] = weighed(keys, rows, case["leyden"])
        firsts = [row[0].item() for row in rows["advantages"].unbind()]
        own = len(case["keys"])
        assert not any(firsts[own:])
        done[name] = {
            "advantages": firsts[:own],
            "log_probs": [row.clone() for row in rows["old_log_probs"].unbind()][:own],
            "entropies": [row.clone() for row in entropies][:own],
            "gradient": gradient(made, rows, case["temperature"]),
        }
    torch.save(done, folder / "gradients.pt")


if __name__ == "__main__":
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    main(Path(sys.argv[1]))
