"""Sampling in records: a long grammar is named by its hash, and read with its text."""

import json

import pytest

from leyden.core.data import semconv
from leyden.core.data.sampling import LONG_GRAMMAR, Sampling, grammar_hash, recorded_sampling

LONG = "start: /" + "a" * LONG_GRAMMAR + "/"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5, stop=("x",), seed=3, logit_bias=((4, 1.5),)),
        Sampling(grammar="start: /a/"),
        Sampling(grammar="sha256: /a/\nstart: sha256"),
        Sampling(grammar=LONG, top_k=4),
    ],
)
def test_what_is_recorded_is_read(sampling: Sampling) -> None:
    assert recorded_sampling(sampling.recorded()) == sampling


def test_a_long_grammar_has_an_attribute_of_its_own() -> None:
    attributes = Sampling(grammar=LONG).recorded()

    assert json.loads(attributes[semconv.SAMPLING_USED])["grammar"] == grammar_hash(LONG)
    assert attributes[semconv.SAMPLING_GRAMMAR] == LONG
    assert semconv.SAMPLING_GRAMMAR not in Sampling(grammar=LONG[-LONG_GRAMMAR:]).recorded()


def test_records_of_earlier_versions_hold_the_grammar_among_the_parameters() -> None:
    recorded = {semconv.SAMPLING_USED: json.dumps({"temperature": 1.0, "grammar": LONG})}

    assert recorded_sampling(recorded) == Sampling(grammar=LONG)


def test_a_record_without_the_text_of_its_grammar_or_with_another_text_cannot_be_read() -> None:
    attributes = Sampling(grammar=LONG).recorded()
    used = {semconv.SAMPLING_USED: attributes[semconv.SAMPLING_USED]}

    assert recorded_sampling(used) is None
    assert recorded_sampling(attributes | {semconv.SAMPLING_GRAMMAR: LONG + " "}) is None
    assert recorded_sampling({}) is recorded_sampling({semconv.SAMPLING_USED: "{"}) is None
