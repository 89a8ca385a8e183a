"""A small campaign on the real wire, in which everything must hold; and that what does not hold is found."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from changed_evidence import (
    edited,
    is_drawn,
    is_trained,
    is_whole,
    was_cut,
    was_refused,
    with_attributes,
    with_log,
    with_sampling,
)
from changed_images import (
    image_dropped,
    image_files_swapped,
    image_in_another_place,
    image_in_the_recorded_messages,
    image_of_another_rollout,
    image_recorded_again,
    image_that_no_call_has,
    images_swapped,
    with_one_image,
)
from rich.console import Console

import wire_campaign
from campaign.agents import Outcome
from campaign.checks import all_wrong, may_stop_anywhere
from campaign.dialects.conversation import Choice
from campaign.dialects.table import DIALECTS
from campaign.evidence import Evidence
from campaign.plan import VIEWER, make_plans
from campaign.recompute import Differences, difference, drawn_from, recomputed, version_ranges
from campaign.recorded import Files, Recorded, named_images, packed, sampling_of, text
from campaign.summary import ALWAYS
from campaign.versions import Versions
from leyden.core.data import reasons, semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs, unpack_ids, unpack_log_probs
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span
from leyden.core.errors import GrammarError
from leyden.core.grammar.tokenizer import load_tokenizer
from wire_campaign import TOLERANCE, find, imprecise, run

CALLS, SEED = 400, 0
pytestmark = pytest.mark.timeout(900)

CHANGED = 40
"""Calls that are recomputed with another distribution."""
ENGINE, WHO, ANSWERED, FORMATS, TRAINED, IMAGES = (
    "engines' logs",
    "callers",
    "answers",
    "formats",
    "training",
    "images",
)

Change = Callable[[Evidence], Evidence]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    options = argparse.Namespace(
        calls=CALLS, seed=SEED, at_once=12, processes=2, updates=6, dialects=",".join(DIALECTS)
    )
    return run(options, tmp_path_factory.mktemp("campaign"), Console(quiet=True))


@pytest.fixture(scope="module")
def tokenizer(evidence: Evidence) -> Any:
    return load_tokenizer(str(evidence.policies[VIEWER]))


@pytest.fixture(scope="module")
def versions(evidence: Evidence) -> dict[str, Versions]:
    return {name: Versions(folder) for name, folder in evidence.policies.items()}


def test_everything_holds_in_a_small_campaign(evidence: Evidence) -> None:
    found = find(evidence, list(DIALECTS), 4, Console(quiet=True))
    assert not any(found["wrong"].values()), found["wrong"]
    assert found["counts"]["calls"] == CALLS
    assert found["counts"]["recorded calls"] == found["counts"]["engine's calls"] >= CALLS / 2
    assert max(found["log-probabilities"]["raw"], found["log-probabilities"]["sampling"]) < TOLERANCE
    assert found["log-probabilities"]["tokens"] == found["counts"]["tokens drawn"]
    assert found["log-probabilities"]["after_images"] > 100


def test_each_token_of_an_answer_may_have_its_own_side_of_a_nucleus_edge() -> None:
    """Rounding let the engine take a token more than top-p says at one place, and a token fewer at another."""
    above, below = (0.6, 0.30002, 0.08, 0.01998), (0.6, 0.29998, 0.08, 0.02002)
    recorded = [0.6 / sum(above[:3]), 0.6 / sum(below[:2])]
    sampling = Sampling(temperature=1.0, top_p=0.9)
    ids_T, probabilities_TV = torch.tensor([0, 0]), torch.tensor([above, below])

    def worst(*shares: float) -> float:
        return difference(ids_T, torch.tensor(shares).log(), drawn_from(probabilities_TV.log(), sampling))

    assert worst(*recorded) < 1e-6
    assert worst(recorded[0], 0.99 * recorded[1]) > 1e-3


# --- What does not hold is found


def dropped(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda _: [])[0]


def doubled(evidence: Evidence) -> Evidence:
    def twice(span: Span) -> list[Span]:
        return [span, msgspec.structs.replace(span, span_id="0" * 16)]

    return edited(evidence, twice, is_trained)[0]


def of_another_agent(evidence: Evidence) -> Evidence:
    def other(span: Span) -> list[Span]:
        return [with_attributes(span, AGENT_NAME="critic" if span.attributes[semconv.AGENT_NAME] != "critic" else "x")]

    return edited(evidence, other)[0]


def of_another_span(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda span: [msgspec.structs.replace(span, parent_id="0" * 16)])[0]


def of_another_policy(evidence: Evidence) -> Evidence:
    def other(span: Span) -> list[Span]:
        return [with_attributes(span, POLICY="policy" if span.attributes[semconv.POLICY] == VIEWER else VIEWER)]

    return edited(evidence, other)[0]


def of_another_rollout(evidence: Evidence) -> Evidence:
    changed, span = edited(evidence, lambda _: [])
    here = next(n for n, one in evidence.rollouts.items() if one.rollout_id == span.rollout_id)
    there = next(number for number in evidence.rollouts if number != here)
    other = evidence.rollouts[there]
    moved = msgspec.structs.replace(span, rollout_id=other.rollout_id, attempt_id=other.attempt.attempt_id)
    return replace(changed, spans={**changed.spans, there: [*changed.spans[there], moved]})


def with_another_id(evidence: Evidence) -> Evidence:
    def other(span: Span) -> list[Span]:
        first, *rest = unpack_ids(packed(span, semconv.RESPONSE_IDS))
        return [with_attributes(span, RESPONSE_IDS=pack_ids([first + 1, *rest]))]

    return edited(evidence, other)[0]


def with_another_logprob(evidence: Evidence) -> Evidence:
    def other(span: Span) -> list[Span]:
        *rest, last = unpack_log_probs(packed(span, semconv.SAMPLING_LOGPROBS))
        return [with_attributes(span, SAMPLING_LOGPROBS=pack_log_probs([*rest, last - 1e-5]))]

    return edited(evidence, other)[0]


def with_another_version(evidence: Evidence) -> Evidence:
    def other(span: Span) -> list[Span]:
        return [with_attributes(span, POLICY_VERSIONS=[n for v, k in version_ranges(span) for n in (v + 1, k)])]

    return edited(evidence, other)[0]


def unknown_to_the_engine(evidence: Evidence) -> Evidence:
    _, span = edited(evidence, lambda span: [span])
    return with_log(evidence, span, lambda _: [])


def known_twice_to_the_engine(evidence: Evidence) -> Evidence:
    _, span = edited(evidence, lambda span: [span])
    return with_log(evidence, span, lambda record: [record, record])


def answered_twice(evidence: Evidence) -> Evidence:
    def again(span: Span) -> list[Span]:
        second = with_attributes(span, CALL_ID="chatcmpl-again", RESPONSE_ID="chatcmpl-again")
        return [span, msgspec.structs.replace(second, span_id="0" * 16)]

    changed, span = edited(evidence, again)
    return with_log(
        changed, span, lambda record: [record, msgspec.structs.replace(record, request_id="chatcmpl-again")]
    )


def trained_though_partial(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda span: [with_attributes(span, NOT_TRAINED=None)], was_cut)[0]


def untrained_though_whole(evidence: Evidence) -> Evidence:
    received = {one.answer.id for one in evidence.outcomes if one.answer is not None}

    def is_received(span: Span) -> bool:
        return is_whole(span) and span.attributes[semconv.RESPONSE_ID] in received

    return edited(evidence, lambda span: [with_attributes(span, NOT_TRAINED=reasons.DISCONNECTED)], is_received)[0]


def refusal_not_recorded(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda _: [], was_refused)[0]


def other_words_received(evidence: Evidence) -> Evidence:
    place, outcome = next((n, one) for n, one in enumerate(evidence.outcomes) if one.answer is not None)
    assert outcome.answer is not None
    choices = [msgspec.structs.replace(choice, text=choice.text + "!") for choice in outcome.answer.choices]
    answer = msgspec.structs.replace(outcome.answer, choices=choices)
    changed = msgspec.structs.replace(outcome, answer=answer)
    return replace(evidence, outcomes=[*evidence.outcomes[:place], changed, *evidence.outcomes[place + 1 :]])


def with_choice(evidence: Evidence, fits: Callable[[Outcome, Choice], bool], **changes: Any) -> Evidence:
    """The evidence in which the first choice that fits was received with changes."""
    place, outcome, choice = next(
        (n, one, choice)
        for n, one in enumerate(evidence.outcomes)
        for choice in (one.answer.choices if one.answer is not None else ())
        if fits(one, choice)
    )
    assert outcome.answer is not None
    changed = msgspec.structs.replace(choice, **changes)
    choices = [changed if one is choice else one for one in outcome.answer.choices]
    answer = msgspec.structs.replace(outcome.answer, choices=choices)
    outcomes = [*evidence.outcomes]
    outcomes[place] = msgspec.structs.replace(outcome, answer=answer)
    return replace(evidence, outcomes=outcomes)


def out_of_its_format(evidence: Evidence) -> Evidence:
    plans = {call.mark: call for plan in evidence.plans for call in plan.calls()}

    def has_format(outcome: Outcome, choice: Choice) -> bool:
        plan = plans[outcome.mark]
        formatted = plan.format not in ("none", "json object") and not may_stop_anywhere(plan)
        return formatted and choice.finish == "stop" and not choice.calls

    return with_choice(evidence, has_format, text='{"sum": "many"}')


def another_call_than_was_forced(evidence: Evidence) -> Evidence:
    plans = {call.mark: call for plan in evidence.plans for call in plan.calls()}

    def is_forced(outcome: Outcome, choice: Choice) -> bool:
        plan = plans[outcome.mark]
        whole = choice.finish == "tool_calls" and not may_stop_anywhere(plan)
        return plan.tools in ("required", "strict") and bool(choice.calls) and whole

    return with_choice(evidence, is_forced, calls=[("call_1", "calculator", '{"expression": 3}')])


def other_ids_received(evidence: Evidence) -> Evidence:
    return with_choice(evidence, lambda _, choice: bool(choice.ids), ids=[1, 2, 3])


def nothing_known_of_a_call(evidence: Evidence) -> Evidence:
    return replace(evidence, outcomes=evidence.outcomes[1:])


@pytest.mark.parametrize(
    ("change", "found_by"),
    [
        (dropped, {ENGINE, ANSWERED}),
        (doubled, {ENGINE, ANSWERED, TRAINED}),
        (of_another_agent, {WHO}),
        (of_another_span, {WHO}),
        (of_another_policy, {WHO, ENGINE}),
        (of_another_rollout, {WHO}),
        (with_another_id, {ENGINE}),
        (with_another_logprob, {ENGINE}),
        (with_another_version, {ENGINE}),
        (unknown_to_the_engine, {ENGINE}),
        (known_twice_to_the_engine, {ENGINE}),
        (answered_twice, {ANSWERED}),
        (trained_though_partial, {TRAINED}),
        (untrained_though_whole, {ANSWERED}),
        (refusal_not_recorded, {WHO}),
        (other_words_received, {ANSWERED}),
        (other_ids_received, {ANSWERED}),
        (out_of_its_format, {ANSWERED, FORMATS}),
        (another_call_than_was_forced, {ANSWERED, FORMATS}),
        (nothing_known_of_a_call, {ANSWERED}),
        (images_swapped, {IMAGES}),
        (image_of_another_rollout, {IMAGES, TRAINED}),
        (image_in_another_place, {IMAGES}),
        (image_dropped, {IMAGES, TRAINED}),
        (image_files_swapped, {IMAGES, TRAINED}),
        (image_recorded_again, {IMAGES}),
        (image_that_no_call_has, {IMAGES}),
        (image_in_the_recorded_messages, {IMAGES}),
    ],
)
def test_what_is_wrong_is_found(evidence: Evidence, tokenizer: Any, change: Change, found_by: set[str]) -> None:
    wrong = all_wrong(Recorded(change(evidence), tokenizer))
    assert found_by <= {name for name, lines in wrong.items() if lines}, wrong


def test_calls_with_each_others_images_and_a_call_without_its_image_are_named(
    evidence: Evidence, tokenizer: Any
) -> None:
    calls = [text(span, semconv.CALL_ID) for span in with_one_image(evidence)]
    swapped = "\n".join(all_wrong(Recorded(images_swapped(evidence), tokenizer))[IMAGES])
    for call in calls:
        assert f"{call}: sent with the images" in swapped
        assert f"{call}: trained with other images than it was sent with" in swapped
        assert f"{call}: its messages name other images than its prompt" in swapped
    dropped_image = all_wrong(Recorded(image_dropped(evidence), tokenizer))
    digest = named_images(with_one_image(evidence)[0])[0][0]
    assert f"{calls[0]}: the file of its image {digest[:8]} is not recorded" in dropped_image[IMAGES]
    assert f"{calls[0]}: never trained" in dropped_image[TRAINED]


def differing(found: Differences) -> tuple[float, float]:
    return found.raw, found.sampling


def compared(spans: Sequence[Span], versions: dict[str, Versions], files: Files | None = None) -> Differences:
    return recomputed(spans, versions, files or {}, lambda: None)


def is_of_text(span: Span) -> bool:
    return is_whole(span) and not named_images(span)


def is_free(span: Span) -> bool:
    return is_of_text(span) and not sampling_of(span).grammar


@pytest.mark.parametrize("changed", ["raw", "drawn from", "version"])
def test_log_probabilities_that_no_version_gives_are_found(
    evidence: Evidence, versions: dict[str, Versions], changed: str
) -> None:
    _, span = edited(evidence, lambda span: [span], is_free)
    key = {"raw": "RESPONSE_LOGPROBS", "drawn from": "SAMPLING_LOGPROBS"}.get(changed)
    if key is None:
        given = with_attributes(span, POLICY_VERSIONS=[n for v, k in version_ranges(span) for n in (v + 1, k)])
    else:
        *rest, last = unpack_log_probs(packed(span, getattr(semconv, key)))
        given = with_attributes(span, **{key: pack_log_probs([*rest, last - 2 * TOLERANCE])})

    assert imprecise(compared([span], versions)) == []
    (wrong,) = imprecise(compared([given], versions))
    assert str(span.attributes[semconv.CALL_ID]) in wrong


def test_log_probabilities_of_other_images_and_of_none_are_found(
    evidence: Evidence, versions: dict[str, Versions], tokenizer: Any
) -> None:
    first, _ = with_one_image(evidence)
    call = text(first, semconv.CALL_ID)
    assert max(differing(compared([first], versions, Recorded(evidence, tokenizer).files))) < TOLERANCE
    for change, named in (
        (images_swapped, call),
        (image_files_swapped, call),
        (image_dropped, f"{call} (an image is missing)"),
    ):
        recorded = Recorded(change(evidence), tokenizer)
        spans = [span for span in recorded.drawn if span.attributes[semconv.CALL_ID] == call]
        found = compared(spans, versions, recorded.files)
        assert max(differing(found)) > 100 * TOLERANCE
        assert found.worst_call == named


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", -2.0),
        ("frequency_penalty", -2.0),
        ("repetition_penalty", 1.0),
        ("min_p", 0.0),
        ("top_k", 0),
        ("top_p", 1.0),
    ],
)
def test_another_distribution_than_the_recorded_one_is_found(
    evidence: Evidence, versions: dict[str, Versions], field: str, value: float
) -> None:
    """The recomputation depends on each part of the sampling: with another one, some log-probability differs.

    Few calls have a penalty that happens to matter, so many get one.
    """
    spans = [span for spans in evidence.spans.values() for span in spans if is_drawn(span) and not named_images(span)]
    others = [
        span for span in spans if sampling_of(span).temperature > 0 and getattr(sampling_of(span), field) != value
    ][:CHANGED]
    changed = [with_attributes(with_sampling(span, **{field: value}), SAMPLING_KEPT=None) for span in others]
    assert max(differing(compared(others, versions))) < TOLERANCE
    assert max(differing(compared(changed, versions))) > TOLERANCE


def test_a_grammar_that_does_not_allow_a_recorded_token_is_found(
    evidence: Evidence, versions: dict[str, Versions]
) -> None:
    _, span = edited(evidence, lambda span: [span], lambda span: is_of_text(span) and bool(sampling_of(span).grammar))
    with pytest.raises(GrammarError, match="does not allow"):
        compared([with_sampling(span, grammar="start: /~~~/")], versions)


def test_a_campaign_in_which_nothing_happened_fails(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Evidence(policies=evidence.policies, plans=[], outcomes=[], log={}, rollouts={}, spans={})

    def ran(*_: object) -> Evidence:
        return nothing

    monkeypatch.setattr(wire_campaign, "run", ran)
    monkeypatch.setattr(sys, "argv", ["wire_campaign.py", "--json", str(tmp_path / "found.json")])
    with pytest.raises(SystemExit) as ended:
        wire_campaign.main()
    assert ended.value.code == 1
    assert f"{ALWAYS[0]}: never" in capsys.readouterr().out
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert "no token was recomputed" in found["wrong"]["log-probabilities"]


def test_a_seed_plans_the_same_calls_again() -> None:
    plans = make_plans(100, 5, list(DIALECTS))
    assert sum(1 for plan in plans for _ in plan.calls()) == 100
    assert plans == make_plans(100, 5, list(DIALECTS))
    assert plans != make_plans(100, 6, list(DIALECTS))
