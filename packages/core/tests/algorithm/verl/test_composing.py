"""The dictionary of the tutorials on VERL's own defaults: every key taken, or refused by its path in one line."""

from collections.abc import Mapping
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from verl_cpu.tutorial import TUTORIAL

from leyden.core.algorithm.verl.driver.owned_settings import ESTIMATORS, INSTEAD, REPLACED, RULES, UNSCALED
from leyden.core.algorithm.verl.row_sampling import can_adjust
from leyden.core.algorithm.verl.settings import compose
from leyden.core.errors import UsageError
from leyden.core.testing.policies import tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer

pytestmark = [
    pytest.mark.skipif(find_spec("verl") is None, reason="VERL is not installed"),
    pytest.mark.filterwarnings("ignore"),  # those of VERL's own imports
]


def leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        found |= leaves(cast("dict[str, Any]", value), f"{path}.") if isinstance(value, dict) else {path: value}
    return found


def with_(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The tutorial's dictionary with further keys, which may have dots."""
    return {**deepcopy(TUTORIAL), **dict(changes)}


def test_the_tutorials_dictionary_composes_and_validates_unedited() -> None:
    given = deepcopy(TUTORIAL)
    composed = leaves(compose(TUTORIAL))

    assert given == TUTORIAL
    ours = {"algorithm.adv_estimator", *REPLACED}
    assert {path for path, value in leaves(TUTORIAL).items() if composed[path] != value} == ours
    assert composed["algorithm.adv_estimator"] == "leyden"
    assert composed["algorithm.leyden.advantage.name"] == "grpo"
    assert composed["algorithm.leyden.credit.name"] == "uniform"
    assert composed["critic.enable"] is False
    manager = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
    assert composed[manager] == "leyden.core.algorithm.verl.inside_verl.rollout_manager.RolloutManager"


def test_where_tasks_are_read_is_for_who_reads_them_and_an_override_of_it_is_refused() -> None:
    owned = {"data": {"train_files": "ours.parquet", "val_files": "held_out.parquet"}}
    assert compose(TUTORIAL, owned=owned)["data"]["train_files"] == "ours.parquet"
    with pytest.raises(UsageError, match=r"data\.train_files: 'mine' contradicts this run, which has 'ours.parquet'"):
        compose(TUTORIAL, ["data.train_files=mine"], owned)
    with pytest.raises(UsageError, match=r"data\.train_files cannot be set: the run sets the tasks"):
        compose(TUTORIAL, ["data.train_files=mine"])


def test_overrides_win_and_what_a_run_owns_is_filled_in() -> None:
    owned = {"data.train_files": "train.parquet", "trainer": {"default_local_dir": "here", "total_training_steps": 3}}
    composed = compose(TUTORIAL, ["data.train_batch_size=64", "actor_rollout_ref.rollout.n=8"], owned)

    assert composed["data"]["train_batch_size"] == 64
    assert composed["actor_rollout_ref"]["rollout"]["n"] == 8
    assert composed["data"]["train_files"] == "train.parquet"
    assert composed["trainer"]["default_local_dir"] == "here"
    assert composed["trainer"]["total_training_steps"] == 3
    assert composed["data"]["max_prompt_length"] == 4096


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ((), True),
        ((("actor_rollout_ref.actor.strategy", "fsdp2"),), True),
        ((("actor_rollout_ref.actor.strategy", "veomni"),), False),
        ((("actor_rollout_ref.model.use_fused_kernels", True),), False),
        ((("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 2),), False),
        ((("actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size", 2),), False),
    ],
)
def test_engines_whose_logits_can_be_adjusted(changes: tuple[tuple[str, Any], ...], found: bool) -> None:
    from leyden.core.algorithm.verl.verl_config import OmegaConf

    assert can_adjust(OmegaConf.create(compose(with_(*changes)))) is found


def test_keys_with_dots_and_keys_of_a_sections_dataclass_are_taken() -> None:
    precision = {"param_dtype": "fp32"}
    reinforce = {"loss_mode": "bypass_mode", "rollout_correction": {"loss_type": "reinforce"}}
    composed = compose(
        with_(
            ("actor_rollout_ref.actor.fsdp_config.mixed_precision", precision),
            ("actor_rollout_ref.model.override_config.attn_implementation", "sdpa"),
            ("trainer.total_training_steps", 5),
            ("actor_rollout_ref.actor.policy_loss", reinforce),
        )
    )
    assert composed["actor_rollout_ref"]["actor"]["fsdp_config"]["mixed_precision"] == precision
    assert composed["actor_rollout_ref"]["model"]["override_config"] == {"attn_implementation": "sdpa"}
    assert composed["trainer"]["total_training_steps"] == 5
    assert composed["actor_rollout_ref"]["actor"]["policy_loss"].items() >= reinforce.items()


def test_with_lora_replicas_get_whole_weights() -> None:
    assert compose(TUTORIAL)["actor_rollout_ref"]["model"]["lora"]["merge"] is False
    composed = compose(with_(("actor_rollout_ref.model.lora_rank", 32), ("actor_rollout_ref.model.lora_alpha", 64)))
    model = composed["actor_rollout_ref"]["model"]
    assert (model["lora_rank"], model["lora_alpha"], model["lora"]["merge"]) == (32, 64, True)
    assert compose(TUTORIAL, ["actor_rollout_ref.model.lora_rank=8"])["actor_rollout_ref"]["model"]["lora"]["merge"]
    with pytest.raises(UsageError, match=r"model\.lora\.merge: False is not possible with Leyden: agents' calls"):
        compose(with_(("actor_rollout_ref.model.lora_rank", 32), ("actor_rollout_ref.model.lora.merge", False)))
    with pytest.raises(UsageError, match=r"model\.lora_adapter_path: 'here' is not possible with Leyden: version 0"):
        compose(with_(("actor_rollout_ref.model.lora_rank", 32), ("actor_rollout_ref.model.lora_adapter_path", "here")))


@pytest.mark.parametrize(
    ("settings", "advantage"),
    [
        ({"algorithm.adv_estimator": "rloo"}, {"name": "rloo"}),
        ({"algorithm.norm_adv_by_std_in_grpo": False}, {"name": "dr_grpo"}),
        ({"algorithm.adv_estimator": "reinforce_plus_plus"}, {"name": "reinforce_plus_plus"}),
    ],
)
def test_verls_estimators_become_those_that_count_rollouts(settings: dict[str, Any], advantage: dict[str, Any]) -> None:
    composed = compose(with_(*settings.items()))
    assert composed["algorithm"]["leyden"]["advantage"].items() >= advantage.items()
    assert composed["critic"]["enable"] is False


@pytest.mark.parametrize("given", [True, False])
def test_gae_has_verls_numbers_and_a_critic_that_begins_as_the_policy(*, given: bool, tmp_path: Path) -> None:
    policy: Any = tiny_policy().module
    policy.save_pretrained(tmp_path)  # VERL looks at the critic's model before it trains one
    save_tiny_tokenizer(tmp_path, None)
    config = with_(
        ("algorithm.adv_estimator", "gae"),
        ("algorithm.lam", 0.9),
        ("critic.ppo_micro_batch_size_per_gpu", 4),
    )
    path = {"actor_rollout_ref.model.path": str(tmp_path)}
    del config["actor_rollout_ref"]["model"]["path"]
    composed = compose({**config, **path}) if given else compose(config, owned=path)
    assert composed["algorithm"]["leyden"]["advantage"].items() >= {"name": "gae", "lam": 0.9, "gamma": 1.0}.items()
    assert composed["critic"]["enable"] is True
    assert composed["critic"]["model"]["path"] == str(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("actor_rollout_ref.rollout.nn", 4, r"actor_rollout_ref\.rollout\.nn: VERL has no such key; did you mean n\?"),
        ("trainers.nnodes", 1, r"trainers: VERL has no such key; did you mean trainer\?"),
        ("trainer.nnodes.of", 1, r"trainer\.nnodes is a value in VERL's configuration \(1\), not a section"),
        ("trainer.v1", 1, r"trainer\.v1: 1 is a value, but VERL has a section under this key"),
        ("trainer.use_v1", False, r"trainer\.use_v1: False is not possible"),
        ("trainer.v1.separate_async.hybrid_rollout.enable_switch", True, r"enable_switch: True is not possible"),
        ("algorithm.use_kl_in_reward", True, r"algorithm\.use_kl_in_reward: True is not possible"),
        (
            "algorithm.adv_estimator",
            "opo",
            r"'opo': VERL's estimator counts a rollout once for .*; use one of gae, grpo",
        ),
        ("algorithm.adv_estimator", "none", r"algorithm\.adv_estimator: 'none': there is no such estimator"),
        ("algorithm.gamma", 0.9, r"algorithm\.gamma has no effect on grpo; set leyden\.credit to"),
        (
            "actor_rollout_ref.actor.loss_agg_mode",
            "seq-mean-token-mean",
            r"loss_agg_mode: .* set leyden\.normalisation",
        ),
        (
            "algorithm.rollout_correction.loss_type",
            "reinforce",
            r"loss_type: 'reinforce' is not possible with Leyden: .* does not read it",
        ),
        (
            "algorithm.rollout_correction",
            {"bypass_mode": True, "rollout_is": "token"},
            r"rollout_correction\.rollout_is has no effect with bypass_mode",
        ),
        ("trainer.default_local_dir", "there", r"default_local_dir: 'there' contradicts this run, which has 'here'"),
        ("critic.enable", True, r"critic\.enable contradicts the advantage estimator, which does not read one"),
        ("leyden.advantage", "rloo", r"both name an estimator; remove one of them"),
        ("leyden.normalization", "token", r"leyden: .*unknown field `normalization`"),
        ("leyden.credit", "learned_value", r"leyden\.credit: VERL trains the critic"),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            "dro",
            r"leyden\.normalisation: rollout does not work with .*loss_mode dro",
        ),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 64, r"VERL refuses the configuration: .*train_batch_size"),
    ],
)
def test_what_cannot_be_is_refused_by_its_path_in_one_line(path: str, value: object, said: str) -> None:
    config = with_((path, value))
    if value == "dro":
        config["leyden"] = {"normalisation": "rollout"}
    with pytest.raises(UsageError, match=said) as refused:
        compose(config, owned={"trainer.default_local_dir": "here"})
    assert "\n" not in str(refused.value)


def test_the_rules_are_about_what_this_verl_has() -> None:
    from leyden.core.algorithm.verl import verl_config
    from leyden.core.algorithm.verl.inside_verl import verl_trainer

    defaults = leaves(verl_config.resolved(verl_config.default_config()))
    assert {path: defaults[path] for path in RULES} == {path: allowed for path, (allowed, _) in RULES.items()}
    assert {*verl_trainer.core_algos.ADV_ESTIMATOR_REGISTRY} == {*ESTIMATORS, *INSTEAD, "leyden"}
    assert {*UNSCALED} <= {*verl_trainer.core_algos.POLICY_LOSS_REGISTRY}


def test_an_override_that_verl_does_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not accept this override: .*trainer\.nodes") as refused:
        compose(TUTORIAL, ["trainer.nodes=2"])
    assert "\n" not in str(refused.value)


def test_an_override_that_contradicts_is_refused_by_the_same_rules() -> None:
    with pytest.raises(UsageError, match=r"algorithm\.use_kl_in_reward: True is not possible"):
        compose(TUTORIAL, ["algorithm.use_kl_in_reward=true"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["trainer.nnodes=16", "actor_rollout_ref.actor.ppo_mini_batch_size=2"],
            "actor.ppo_mini_batch_size: 2 × rollout.n 4 rows cannot be divided evenly among 16 ranks",
        ),
        (
            ["trainer.nnodes=64"],
            "actor.ppo_micro_batch_size_per_gpu: 4 does not divide 2, the rows of a mini-batch that",
        ),
        (
            ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=48"],
            "rollout.log_prob_micro_batch_size_per_gpu: 48 does not divide 128",
        ),
    ],
)
def test_sizes_that_a_ranks_share_is_no_multiple_of_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        compose(TUTORIAL, overrides)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_sizes_in_tokens_and_ranks_that_share_rows_are_taken() -> None:
    by_tokens = ["actor_rollout_ref.actor.use_dynamic_bsz=true", "trainer.nnodes=64"]
    assert compose(TUTORIAL, [*by_tokens, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true"])
    assert compose(TUTORIAL, ["trainer.nnodes=64", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"])
