import subprocess
import sys
from typing import Any

import pytest

from leyden.core.errors import UsageError
from leyden.core.policy.losses.gspo import GSPO
from leyden.core.policy.losses.ppo_clip import PPOClip
from leyden.core.policy.update.config import UpdateConfig, UpdateOptions, update_config


def test_each_loss_has_its_own_defaults() -> None:
    assert UpdateOptions().make_loss() == PPOClip(clip_low=0.2, clip_high=0.2)
    assert UpdateOptions(loss="gspo").make_loss() == GSPO(clip_low=3e-4, clip_high=4e-4)
    assert UpdateOptions(loss={"name": "gspo", "clip_high": 0.1}).make_loss() == GSPO(clip_low=3e-4, clip_high=0.1)


def test_a_run_adds_its_length_and_seed() -> None:
    options = UpdateOptions(schedule="cosine", warmup_steps=2, kl_loss=0.1)
    config = update_config(options, steps=30, seed=4)
    assert (config.steps, config.seed, config.schedule, config.kl_loss) == (30, 4, "cosine", 0.1)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"loss": "ppo"}, "unknown loss 'ppo'; use one of cispo, dpo, dual_clip, gspo, ppo_clip"),
        (
            {"loss": {"name": "reinforce", "clip_low": 0.1}},
            "loss 'reinforce' has no option 'clip_low'; it has no options",
        ),
        ({"loss": {"name": "gspo", "clip_dual": 3.0}}, "has no option 'clip_dual'; it has clip_low, clip_high"),
        ({"loss": {"name": "dual_clip", "clip_dual": 1.1}}, "clip_dual must be above 1"),
        ({"loss": {"name": "ppo_clip", "clip_low": 0.0}}, "clip_low must be above 0"),
        ({"loss": {"name": "cispo", "clip_low": 1.5}}, "clip_low must be above 0 and at most 1, got 1.5"),
        ({"loss": {"name": "gspo", "clip_high": -0.1}}, "clip_high must be above 0"),
        ({"correction": "none"}, "unknown correction 'none'; use one of masked, recomputed, truncated"),
        ({"correction": {"name": "recomputed", "high": 2.0}}, "'recomputed' has no option 'high'"),
        ({"correction": {"name": "truncated", "low": 0.5}}, "'truncated' has no option 'low'; it has level, high"),
        ({"correction": {"name": "truncated", "level": "word"}}, "Invalid enum value 'word'"),
        ({"loss": "reinforce", "correction": "recomputed"}, "'recomputed' has no effect on loss 'reinforce'"),
        ({"loss": "sft", "correction": "truncated"}, "correction has no effect on loss 'sft'"),
        ({"loss": "sft", "kl_reward": 0.1}, "kl_reward has no effect on loss 'sft'"),
        ({"kl_estimator": "k3"}, "kl_estimator has no effect without kl_loss"),
        ({"kl_loss": 0.1, "kl_estimator": "k1"}, "kl_estimator k1 has no effect"),
        ({"kl_loss": 0.1, "kl_estimator": "k4"}, "kl_estimator must be k2 or k3, got 'k4'"),
        ({"decay_to": 0.1}, "decay_to has no effect on a constant schedule"),
        ({"schedule": "linear"}, "a linear schedule needs steps"),
        ({"normalisation": "constant"}, "needs tokens_per_rollout"),
        ({"tokens_per_rollout": 5}, "tokens_per_rollout has no effect with token normalisation"),
        ({"kl_reward": -0.1}, "kl_reward must not be negative"),
        ({"entropy_bonus": float("nan")}, "entropy_bonus must be a finite number, got nan"),
        ({"schedule": "linear", "steps": 3, "decay_to": 2.0}, "decay_to is a share"),
    ],
)
def test_an_option_that_cannot_work_or_would_be_ignored_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        UpdateConfig(**values)
    assert "\n" not in str(caught.value)


def test_a_reference_is_kept_only_where_it_is_used() -> None:
    assert not UpdateOptions().compares_with_reference
    assert UpdateOptions(kl_loss=0.1).compares_with_reference
    assert UpdateOptions(kl_reward=0.1).compares_with_reference


@pytest.mark.integration
def test_options_are_checked_without_torch() -> None:
    imports = "from leyden.core.policy.update.config import UpdateOptions"
    code = f"import sys; {imports}; UpdateOptions(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
