"""The same captured rollouts through Leyden's own backend and through VERL's: the same advantages, the same gradient.

VERL's part is its own code: its call of a registered estimator, its padding rows, its loss, its FSDP2 worker; on a CPU,
which `verl_cpu.platform` makes its accelerator.
"""

import os
import random
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from verl_cpu.environment import ENVIRONMENT

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import WeightedBatch, weigh
from leyden.core.algorithm.critic_targets import valued
from leyden.core.algorithm.verl.inside_verl.adjusting_engine import BLOCKED, adjusted_rows
from leyden.core.algorithm.verl.row_sampling import SAMPLING_FIELD, UNADJUSTED, RowSampling
from leyden.core.algorithm.verl.rows import RowLimits, training_rows
from leyden.core.credit.registry import CREDIT
from leyden.core.data.encoding.token_sets import pack_token_sets
from leyden.core.data.encoding.tokens import log_probs
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Outcome, TrajectoryGroup, Transition
from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import replay
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.finite_language import SIZE, TEMPLATE, FiniteLanguage
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.servers.ports import free_port
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer

pytestmark = [
    pytest.mark.skipif(find_spec("verl") is None, reason="VERL is not installed"),
    pytest.mark.timeout(600),
]
SUPPORT = Path(__file__).parents[5] / "tests/support"
TEMPERATURE = 0.8
LIMITS = RowLimits(prompt=256, response=16, temperature=TEMPERATURE)
SQL = {"kind": "tool", "name": "sql", "succeeded": 0.2, "failed": -0.1}
CREDITS: dict[str, Any] = {
    "uniform": "uniform",
    "role decay": {"name": "role_decay", "gamma": {"planner": 0.5}, "otherwise": 0.9},
    "intermediate": {"name": "intermediate", "rules": [SQL]},
}
ADVANTAGES = {"GRPO": "grpo", "RLOO": "rloo", "REINFORCE++": "reinforce_plus_plus", "PPO": "gae"}
COMPARED = {
    f"{credit}, {advantage}": {"credit": CREDITS[credit], "advantage": ADVANTAGES[advantage], "normalisation": "token"}
    for credit in CREDITS
    for advantage in ADVANTAGES
}
OTHERS: dict[str, dict[str, Any]] = {
    "by rollout": {"credit": "uniform", "advantage": "rloo", "normalisation": "rollout"},
    "a group without spread": {
        "credit": "uniform",
        "advantage": "reinforce_plus_plus_baseline",
        "normalisation": "token",
    },
}
USUAL: dict[str, Any] = {
    "credit": "uniform",
    "advantage": "rloo",
    "normalisation": "token",
    "loss": {"name": "dual_clip", "clip_low": 0.2, "clip_high": 0.3},
    "correction": None,
    "policy_loss": {},
    "rollout_correction": None,
}
"""A case of both: what is Leyden's first, then what VERL calls the same loss and the same correction."""
REINFORCE = {"loss_mode": "bypass_mode", "rollout_correction": {"loss_type": "reinforce"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "REINFORCE": {"loss": "reinforce", "policy_loss": REINFORCE},
    "GSPO": {"loss": {"name": "gspo", "clip_low": 0.2, "clip_high": 0.3}, "policy_loss": {"loss_mode": "gspo"}},
    "CISPO": {"loss": {"name": "cispo", "clip_low": 0.2, "clip_high": 0.3}, "policy_loss": {"loss_mode": "cispo"}},
    "recomputed": {"correction": "recomputed", "rollout_correction": {"rollout_is": None}},
    "truncated": {
        "correction": {"name": "truncated", "high": 1.2},
        "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 1.2},
    },
    "masked": {
        "correction": {"name": "masked", "low": 0.8, "high": 1.25},
        "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.8_1.25"},
    },
}
ADJUSTED: dict[str, dict[str, Any]] = {
    f"adjusted, {name}": {**case, "adjusted": True} for name, case in {"served": {}, **SETTINGS}.items()
}
"""Cases of responses that were sampled with grammars, penalties, biases and truncation."""
CASES: dict[str, dict[str, Any]] = {
    name: {**USUAL, "adjusted": False, **case} for name, case in (COMPARED | OTHERS | SETTINGS | ADJUSTED).items()
}
PLAIN = Capabilities(plain_head=True, shared_prefix=False)
GRAMMAR = 'start: "a" "b"? | "b" "b"? "a" | "c" "a"?'
ANSWERS = ["a", "ab", "ba", "bba", "c", "ca"]
SAMPLINGS = (
    None,
    Sampling(grammar=GRAMMAR),
    Sampling(grammar=GRAMMAR, repetition_penalty=1.4, frequency_penalty=0.3, logit_bias=((70, 1.0), (68, -2.0))),
    Sampling(repetition_penalty=0.8, presence_penalty=0.5, logit_bias=((70, 2.0),)),
    Sampling(top_k=5, grammar=GRAMMAR),
)
"""How responses are sampled, in turn."""


@torch.no_grad()
def likelihoods(model: PolicyModel, prompt: list[int], response: list[int]) -> list[float]:
    """Log-probabilities of the response at the temperature it is drawn at."""
    logits_TV = model.module(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return (logits_TV / TEMPERATURE).log_softmax(-1).gather(1, torch.tensor([response]).T)[:, 0].tolist()


def captured(model: PolicyModel) -> list[TrajectoryGroup]:
    """Three tasks of four rollouts of 1 to 5 calls each, drawn by a slightly other policy than `model`.

    One rollout has no reward, and all of the last task's have the same. The control tokens, 0 to 2, are not among them:
    VERL makes the tokenizer's padding token the embedding's, which then learns nothing where it is read.
    """
    random_ = random.Random(7)

    def call(rollout: str, prompt: list[int]) -> Transition:
        response = [random_.randrange(3, 64) for _ in range(random_.randint(1, 7))]
        own = likelihoods(model, prompt, response)
        outcomes = (Outcome(kind="tool", name="sql", succeeded=random_.random() < 0.5),)
        return transition(
            prompt,
            response,
            [logprob + random_.gauss(0.0, 0.2) for logprob in own],
            rollout_id=rollout,
            agent=random_.choice(("planner", "worker")),
            outcomes=outcomes if random_.random() < 0.6 else (),
            temperature=TEMPERATURE,
        )

    def rollout(name: str, reward: float | None, count: int) -> Any:
        context = [random_.randrange(3, 64) for _ in range(5)]
        made: list[Transition] = []
        for _ in range(count):
            made.append(call(name, context))
            context = [*context, *made[-1].response_ids, *(random_.randrange(3, 64) for _ in range(3))]
        return trajectory(reward, made)

    rewards = [(1.0, 0.0, 0.5, 0.25), (0.0, None, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0)]
    return [
        TrajectoryGroup(
            task_id=str(task),
            trajectories=tuple(rollout(f"{task}-{n}", reward, (task + 2 * n) % 5 + 1) for n, reward in enumerate(own)),
        )
        for task, own in enumerate(rewards)
    ]


def policy(folder: Path | None = None) -> PolicyModel:
    model = tiny_policy(shape=TinyShape(vocab=SIZE))
    return model if folder is None else PolicyModel(model.module, folder)


def adjusted_groups(model: PolicyModel, folder: Path) -> list[TrajectoryGroup]:
    """Four tasks of four rollouts of 1 to 3 calls, sampled in all of `SAMPLINGS` by a slightly other policy."""
    random_, language = random.Random(9), FiniteLanguage(folder, ANSWERS)
    turn = iter(range(1000))

    def response(sampling: Sampling | None) -> list[int]:
        if sampling is None or not sampling.grammar:
            return [random_.randrange(3, 260) for _ in range(random_.randint(1, 7))]
        ids = list[int]()
        while not ids or ids[-1] not in language.ends:
            ids.append(random_.choice(sorted(language.allowed(ids))))
        return ids

    def call(rollout: str, prompt: list[int]) -> Transition:
        sampling = SAMPLINGS[next(turn) % len(SAMPLINGS)]
        ids = response(sampling)
        kept = None
        if sampling is not None and sampling.truncates:
            allowed_TV = np.zeros((len(ids), 32 * -(-SIZE // 32)), dtype=bool)
            for at, token in enumerate(ids):
                allowed_TV[at, [token, *sorted(language.allowed(ids[:at]))[:2]]] = True
            kept = pack_token_sets([np.packbits(allowed_TV, axis=1, bitorder="little").view("<i4")])
        made = transition(
            prompt,
            ids,
            rollout_id=rollout,
            span_id=f"{rollout}-{len(prompt)}",
            sampling=sampling,
            kept=kept,
            temperature=TEMPERATURE,
        )
        own_T = replay(model, [WeightedTransition(transition=made, advantage=0.0)], None, PLAIN)[0]
        return replace(made, logprobs=log_probs([value + random_.gauss(0.0, 0.2) for value in own_T.tolist()]))

    def rollout(name: str, reward: float, count: int) -> Any:
        context, made = [random_.randrange(3, 260) for _ in range(5)], list[Transition]()
        for _ in range(count):
            made.append(call(name, context))
            context = [*context, *made[-1].response_ids, *(random_.randrange(3, 260) for _ in range(3))]
        return trajectory(reward, made)

    return [
        TrajectoryGroup(
            task_id=str(task),
            trajectories=tuple(rollout(f"{task}-{n}", random_.random(), (task + n) % 3 + 1) for n in range(4)),
        )
        for task in range(4)
    ]


def with_values(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups as a critic saw them: the value of a state follows from its length alone."""
    return valued(groups, lambda calls: torch.tensor([len(call.prompt_ids) / 50 for call in calls]).double().numpy())


def own_gradient(model: PolicyModel, batch: WeightedBatch, case: dict[str, Any]) -> dict[str, Tensor]:
    config = UpdateConfig(
        learning_rate=0.0,
        max_grad_norm=1e9,
        normalisation=case["normalisation"],
        loss=case["loss"],
        correction=case["correction"],
    )
    report = Updater(model, config).step(batch.transitions)
    if case["correction"] is None and case["loss"] != "reinforce":
        assert 0 < report.diagnostics.clip_fraction < 1
    return {name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None}


def verl_case(groups: list[TrajectoryGroup], case: dict[str, Any], limits: RowLimits = LIMITS) -> dict[str, Any]:
    """The rows of the groups, with what VERL's critic would say of every token beside them."""
    credit, advantage = CREDIT.make(case["credit"]), ADVANTAGE.make(case["advantage"])
    keys: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        for row in training_rows(f"task{number}", group, credit, advantage, limits).rows:
            values_T = torch.full((len(row.response_ids),), -9.0)
            values_T[0] = len(row.prompt_ids) / 50
            keys.append(row.key)
            rows.append({**row.fields(), "values": values_T})
    return {
        "keys": keys,
        "rows": rows,
        "leyden": {name: case[name] for name in ("advantage", "normalisation")},
        "policy_loss": case["policy_loss"],
        "correction": case["rollout_correction"],
        "temperature": TEMPERATURE,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the policy in it."""
    folder = tmp_path_factory.mktemp("verl")
    module: Any = policy().module
    module.save_pretrained(folder / "policy")
    save_tiny_tokenizer(folder / "policy", TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def groups(folder: Path) -> dict[bool, list[TrajectoryGroup]]:
    """Rollouts, by whether anything but the temperature changed the logits."""
    return {
        False: with_values(captured(policy())),
        True: with_values(adjusted_groups(policy(folder / "policy"), folder / "policy")),
    }


@pytest.fixture(scope="module")
def verl_gradients(groups: dict[bool, list[TrajectoryGroup]], folder: Path) -> dict[str, Any]:
    """What VERL made of all cases, in a process of its own."""
    limits = replace(LIMITS, sampling=RowSampling(lambda: (str(folder / "policy"), SIZE)))
    cases = {name: verl_case(groups[case["adjusted"]], case, limits) for name, case in CASES.items()}
    torch.save(cases, folder / "cases.pt")
    paths = [str(SUPPORT), *(path for path in sys.path if path)]
    done = subprocess.run(
        [sys.executable, "-m", "verl_cpu.gradients", str(folder)],
        env={
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(paths),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(folder / "gradients.pt", weights_only=True)


@pytest.mark.parametrize("name", CASES)
def test_verl_takes_the_same_step(
    name: str, groups: dict[bool, list[TrajectoryGroup]], folder: Path, verl_gradients: dict[str, Any]
) -> None:
    case, theirs = CASES[name], verl_gradients[name]
    model = policy(folder / "policy")
    batch = weigh(groups[case["adjusted"]], CREDIT.make(case["credit"]), ADVANTAGE.make(case["advantage"]))
    ours = own_gradient(model, batch, case)

    if name in COMPARED:
        assert theirs["advantages"] == pytest.approx([item.advantage for item in batch.transitions], rel=1e-6, abs=1e-6)
    assert theirs["gradient"].keys() == ours.keys()
    own_P, verl_P = (
        torch.cat([grads[key].double().flatten() for key in ours]).numpy() for grads in (ours, theirs["gradient"])
    )
    assert np.linalg.norm(own_P) > 0
    assert np.linalg.norm(verl_P - own_P) <= 1e-5 * np.linalg.norm(own_P)


def test_verl_computes_the_probabilities_of_what_was_sampled(
    groups: dict[bool, list[TrajectoryGroup]], folder: Path, verl_gradients: dict[str, Any]
) -> None:
    """The first importance ratios: with an engine that serves the same weights, they are 1."""
    found = verl_gradients["adjusted, recomputed"]
    calls = [call for group in groups[True] for own in group.trajectories for call in own.transitions]
    trained = [WeightedTransition(transition=call, advantage=0.0) for call in calls]
    expected = replay(policy(folder / "policy"), trained, None, PLAIN)

    assert {call.sampling for call in calls} == set(SAMPLINGS)
    for own_T, verl_T, entropy_T in zip(expected, found["log_probs"], found["entropies"], strict=True):
        assert np.abs(np.exp(verl_T.numpy() - own_T) - 1).max() < 1e-5
        assert entropy_T.isfinite().all() and len(entropy_T) == len(own_T)


def test_verls_engine_with_rows_one_after_another_and_with_rows_that_fill_a_batch(folder: Path) -> None:
    limits = RowSampling(lambda: (str(folder / "policy"), SIZE))
    sampling = Sampling(logit_bias=((4, 2.0),), grammar=GRAMMAR)
    ids = FiniteLanguage(folder / "policy", ANSWERS)
    end, letter = next(iter(ids.ends)), sorted(ids.allowed([]))[0]
    packed = limits.packed(transition([5, 6], [letter, end], sampling=sampling))
    nested: Any = torch.nested
    rows = {
        "input_ids": [[5, 6, letter, end], [7, 8], [5, 9, end]],
        "response_mask": [[1, 1], [1], [0]],
        "prompts": [[5, 6], [7], [5, 9]],
        "responses": [[letter, end], [8], [end]],
        SAMPLING_FIELD: [list(packed), list(UNADJUSTED), list(packed)],
    }
    jagged = {
        name: nested.nested_tensor([torch.tensor(row) for row in column], layout=torch.jagged)
        for name, column in rows.items()
    }
    jagged[SAMPLING_FIELD] = nested.nested_tensor(
        [torch.tensor(row, dtype=torch.uint8) for row in rows[SAMPLING_FIELD]], layout=torch.jagged
    )
    logits_NV = torch.randn(9, SIZE)
    padded_BLV = torch.zeros(3, 4, SIZE)
    padded_BLV[0], padded_BLV[1, :2], padded_BLV[2, :3] = logits_NV[:4], logits_NV[4:6], logits_NV[6:]
    one = adjusted_rows(logits_NV[None], jagged)[0]
    other = adjusted_rows(padded_BLV, jagged)

    assert torch.equal(other[0], one[:4]) and torch.equal(other[1, :2], one[4:6]) and torch.equal(other[2, :3], one[6:])
    changed = [n for n in range(9) if not torch.equal(one[n], logits_NV[n])]
    assert changed == [1, 2]
    assert np.flatnonzero(one[1].numpy() > BLOCKED).tolist() == sorted(ids.allowed([]))
