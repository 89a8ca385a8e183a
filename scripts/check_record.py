"""Holds a run's record against the engine's own log and against plain forward passes of the versions it names.

Needs a run made with `--engine-log` and `--keep-checkpoints` high enough to keep every version. Prints what it found;
the exit code is 1 when something does not hold.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.data.transition import Transition
from leyden.core.store.open import open_store
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.select import Selector

FILES: Any = safetensors.torch
AUTO: Any = AutoModelForCausalLM


@dataclass
class Record:
    """What a run's store holds of model calls."""

    transitions: list[Transition] = field(default_factory=list[Transition])
    calls: list[Span] = field(default_factory=list[Span])
    excluded: Counter[str] = field(default_factory=Counter[str])
    """Calls that are no transition, by the reason their span gives."""


async def read_record(run: Path) -> Record:
    """Every call of every rollout of a run."""
    record = Record()
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        for rollout in await store.query_rollouts():
            assert isinstance(rollout, AttemptedRollout)
            spans = (await store.query_spans(rollout.rollout_id)).items
            record.calls += filter(is_recorded_call, spans)
            trajectory = assemble(rollout, rollout.attempt, spans, Selector())
            record.excluded.update(trajectory.excluded)
            record.transitions += trajectory.transitions
    finally:
        await store.close()
    return record


def engine_log(run: Path) -> dict[str, Any]:
    """The engine's own record of every call, by request id."""
    rows = map(json.loads, (run / "engine.jsonl").read_text().splitlines())
    return {row["request_id"]: row for row in rows}


def calls_recorded_wrongly(record: Record, log: dict[str, Any]) -> list[str]:
    """Ids of calls that are missing, doubled, or differ from the engine's log in ids or in who drew which of them."""
    seen = Counter(str(span.attributes[semconv.CALL_ID]) for span in record.calls)
    wrong = [call for call in {*seen, *log} if seen[call] != 1 or call not in log]
    for span in record.calls:
        call = str(span.attributes[semconv.CALL_ID])
        prompt, response = span.attributes[semconv.PROMPT_IDS], span.attributes[semconv.RESPONSE_IDS]
        assert isinstance(prompt, bytes)
        assert isinstance(response, bytes)
        row = log.get(call, {})
        ids = list(unpack_ids(response))
        same = list(unpack_ids(prompt)) == row.get("prompt_ids") and ids == row.get("response_ids")
        drawn_by = [number for pair in row.get("versions", []) for number in pair]
        if not same or recorded_versions(span, len(ids)) != drawn_by:
            wrong.append(call)
    return wrong


def recorded_versions(span: Span, tokens: int) -> object:
    """The versions of a recorded answer, each followed by how many tokens it drew."""
    if not tokens:
        return []
    return span.attributes.get(semconv.POLICY_VERSIONS, [span.attributes.get(semconv.POLICY_VERSION), tokens])


def largest_difference(run: Path, policy: Path, transitions: list[Transition]) -> tuple[float, set[int]]:
    """Largest |recorded - plain forward| of a log-probability, and the versions that were looked at.

    Each token is held against a forward by the version that drew it, over everything before it.
    """
    model = AUTO.from_pretrained(policy, dtype=torch.float32).eval()
    versions = {version for call in transitions for version, _ in call.versions}
    worst = 0.0
    for version in sorted(versions):
        if version:
            weights = FILES.load_file(run / "checkpoints" / f"step-{version:08d}" / "model.safetensors")
            model.load_state_dict(weights, strict=False)
        for call in transitions:
            mine = [drawer == version for drawer, tokens in call.versions for _ in range(tokens)]
            if any(mine):
                difference = (plain_log_probs(model, call) - torch.tensor(list(call.logprobs))).abs()
                worst = max(worst, float(difference[torch.tensor(mine)].max()))
    return worst, versions


def plain_log_probs(model: Any, call: Transition) -> torch.Tensor:
    """The log-probability of each response token at the call's temperature, by one forward over the whole call."""
    ids = torch.tensor([[*call.prompt_ids, *call.response_ids]])
    with torch.no_grad():
        all_TV = (model(ids).logits[0, len(call.prompt_ids) - 1 : -1] / call.temperature).log_softmax(-1)
    return all_TV.gather(1, torch.tensor(list(call.response_ids))[:, None])[:, 0]


def main() -> None:
    """Check one run and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("policy", type=Path, help="the policy that the run began with")
    options = parser.parse_args()
    record, log = asyncio.run(read_record(options.run)), engine_log(options.run)
    wrong = calls_recorded_wrongly(record, log)
    worst, versions = largest_difference(options.run, options.policy, record.transitions)
    lines = map(json.loads, (options.run / "metrics.jsonl").read_text().splitlines())
    ratio = max(line["importance_ratio_deviation"] for line in lines if "importance_ratio_deviation" in line)
    several = sum(len(call.versions) > 1 for call in record.transitions)
    print(f"engine's calls {len(log)}, recorded {len(record.calls)}, wrong {len(wrong)}")
    print(f"transitions {len(record.transitions)}, left out {dict(record.excluded)}")
    print(f"largest log-probability difference {worst:.2e} over versions {min(versions)} to {max(versions)}")
    print(f"calls that saw an update: {several}")
    print(f"largest deviation of a first importance ratio from 1: {ratio:.2e}")
    whole = len(record.transitions) + record.excluded.total() == len(log)
    on_policy = several or ratio < 1e-3  # an update in flight moves the ratios of what was drawn before it
    sys.exit(0 if not wrong and whole and worst < 1e-4 and on_policy else 1)


if __name__ == "__main__":
    main()
