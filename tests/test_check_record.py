"""The check of a run's record, on calls that saw an update: each token belongs to the version that drew it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from check_record import Record, calls_recorded_wrongly, largest_difference
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Attributes
from leyden.core.data.transition import Transition
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.testing.factories import span, transition
from leyden.core.testing.tiny_models import tiny_model

FILES: Any = safetensors.torch
PROMPT = [5, 3, 8]


async def drawn_by(models: Sequence[Any], tokens: Sequence[int]) -> Transition:
    """A call whose first tokens one model drew, and the rest the next one."""
    records: list[EngineRecord] = []
    engine = EmbeddedEngine(models[0], name="tiny", on_finish=records.append)
    await engine.start()
    ids = list(PROMPT)
    for version, (model, count) in enumerate(zip(models, tokens, strict=True)):
        await engine.update_weights(dict(model.named_parameters()), version)
        sampling = Sampling(temperature=0.7, max_tokens=count)
        call = GenerateRequest(request_id=f"{version}", prompt_ids=ids, sampling=sampling)
        ids = ids + [token async for chunk in engine.generate(call) for token in chunk.ids]
    await engine.close()
    logprobs = (value for record in records for value in record.sampling_logprobs)
    return transition(PROMPT, ids[len(PROMPT) :], logprobs, temperature=0.7, versions=tuple(enumerate(tokens)))


async def test_each_token_is_held_against_the_version_that_drew_it(tmp_path: Path) -> None:
    old, new = tiny_model("qwen2", seed=0), tiny_model("qwen2", seed=1)
    transition = await drawn_by([old, new], [9, 6])
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    FILES.save_file(new.state_dict(), checkpoint / "model.safetensors")
    policy: Any = old
    policy.save_pretrained(tmp_path / "policy")

    worst, versions = largest_difference(tmp_path, tmp_path / "policy", [transition])
    assert worst < 1e-4
    assert versions == {0, 1}
    misplaced = replace(transition, versions=((0, 8), (1, 7)))
    assert largest_difference(tmp_path, tmp_path / "policy", [misplaced])[0] > 1e-2


@pytest.mark.parametrize(
    ("recorded", "right"),
    [
        ({semconv.POLICY_VERSIONS: [3, 2, 4, 1]}, True),
        ({semconv.POLICY_VERSIONS: [3, 1, 4, 2]}, False),
        ({}, False),
        ({semconv.RESPONSE_IDS: pack_ids([])}, False),
    ],
)
def test_versions_that_differ_from_the_engines_log_are_found(recorded: Attributes, right: bool) -> None:
    attributes: Attributes = {
        semconv.CALL_ID: "c",
        semconv.PROMPT_IDS: pack_ids(PROMPT),
        semconv.RESPONSE_IDS: pack_ids([1, 2, 3]),
        semconv.POLICY_VERSION: 3,
    }
    log = {"c": {"prompt_ids": PROMPT, "response_ids": [1, 2, 3], "version": 3, "versions": [[3, 2], [4, 1]]}}
    assert calls_recorded_wrongly(Record(calls=[span("chat", attributes | recorded)]), log) == ([] if right else ["c"])
