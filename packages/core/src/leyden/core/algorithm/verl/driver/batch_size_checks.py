"""Batch size checks: VERL must be able to divide its batches among ranks, and these parts into micro-batches.

VERL itself finds an indivisible size only in its first step, after all of the step's rollouts were run. This module
does not import VERL.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from leyden.core.errors import UsageError

Plain = Mapping[str, Any]

_POLICY = "actor_rollout_ref"


def check_shares(config: Plain) -> None:
    """Raise UsageError, in one line with the path, for sizes that do not divide the rows of a rank.

    VERL pads a batch to whole mini-batches of `ppo_mini_batch_size × n` rows, and gives every rank an equal part of
    each. `config` is the complete configuration. Engines other than FSDP are not checked.
    """
    policy, trainer = config[_POLICY], config["trainer"]
    if not str(policy["actor"]["strategy"]).startswith("fsdp"):
        return
    ranks = trainer["n_gpus_per_node"] * trainer["nnodes"]
    for learner, section in _learners(config):
        share, left = divmod(section["ppo_mini_batch_size"] * policy["rollout"]["n"], _groups(ranks, section))
        if left:
            raise UsageError(
                f"{learner}.ppo_mini_batch_size: {section['ppo_mini_batch_size']} × rollout.n "
                f"{policy['rollout']['n']} rows cannot be divided evenly among {_groups(ranks, section)} ranks"
            )
        for path, size in _micro_batches(config, learner):
            if share % size:
                raise UsageError(
                    f"{path}: {size} does not divide {share}, the rows of a mini-batch that each rank gets "
                    f"({learner}.ppo_mini_batch_size × rollout.n / {_groups(ranks, section)})"
                )


def _learners(config: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield path and section of everything that is trained."""
    yield f"{_POLICY}.actor", config[_POLICY]["actor"]
    if config["critic"]["enable"]:
        yield "critic", config["critic"]


def _micro_batches(config: Plain, learner: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of every micro-batch that is counted in rows of the learner's mini-batches."""
    policy = config[_POLICY]
    if learner == "critic":
        sections = {"critic": (config["critic"], "")}
    else:
        sections = {learner: (policy["actor"], ""), f"{_POLICY}.rollout": (policy["rollout"], "log_prob_")}
        if policy["actor"]["use_kl_loss"]:
            sections[f"{_POLICY}.ref"] = (policy["ref"], "log_prob_")
    for path, (section, prefix) in sections.items():
        name = f"{prefix or 'ppo_'}micro_batch_size_per_gpu"
        if section[name] and not section[f"{prefix}use_dynamic_bsz"]:
            yield f"{path}.{name}", section[name]


def _groups(ranks: int, section: Plain) -> int:
    """Return the number of ranks, where ranks that share each row's tokens count as one."""
    return max(1, ranks // (section.get("ulysses_sequence_parallel_size") or 1))
