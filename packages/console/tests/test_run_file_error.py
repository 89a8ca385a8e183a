"""The line of a run file that a message of `leyden train` is about."""

import pytest

from leyden.console.actions.run_file_error import line_of

TEXT = """\
policy: examples/policy
tasks: there/is/no.jsonl
held_out:
- name: few
  sourc: few.jsonl
steps: many
group_size: 0
sampling:
  temperature: hot
algorithm_config:
  learning_rat: 1
  credit: {name: 3}
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("the run file: steps: must be a whole number, not text", 6),
        ("the run file: sampling.temperature: must be a number, not text", 9),
        ("the run file: held_out[0].sourc: unknown", 5),
        ("the run file: held_out[0]: object missing required field `source`", 4),
        ("the run file: there is no setting steps; did you mean", 6),
        ("the run file: there is no setting held_out[0].limit", 4),
        ("the run file: there is no setting runners.wher", None),
        ("configuration of algorithm 'x': object contains unknown field `learning_rat`; did you mean", 11),
        ("configuration of algorithm 'x': credit.name: must be text, not a whole number", 12),
        ("configuration of algorithm 'x': loss: must be text, not a whole number", 10),
        ("group-size must be at least 2, not 0", 7),
        ("--steps is not", 6),
        ("task file there/is/no.jsonl does not exist", 2),
        ("missing AGENT; see `leyden train --help`, or `leyden quickstart`", None),
    ],
)
def test_a_message_is_about_a_line(message: str, line: int | None) -> None:
    assert line_of(TEXT, message) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: : c\n", 2),
        ("a: [1,\nb: 2\n", 2),
        ("a: '", 1),
        ("a: \x01", None),
        ("", None),
        ("- 1\n", None),
        ("a: &a [*a]\n", None),
    ],
)
def test_text_that_is_not_a_run_file_has_the_line_of_its_error(text: str, line: int | None) -> None:
    assert line_of(text, "the run file is not YAML") == line
