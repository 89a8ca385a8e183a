"""Templates of texts: parsed, matched as a whole, filled."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.prompts.template import TextTemplate, check_variables, escaped
from leyden.core.errors import PromptError


@pytest.mark.parametrize(
    ("template", "text", "values"),
    [
        ("Be brief.", "Be brief.", {}),
        ("Be brief.", "Be brief. ", None),
        ("", "", {}),
        ("Q: {v1}\nA:", "Q: why?\nA:", {"v1": "why?"}),
        ("Q: {v1}\nA:", "Q: \nA:", {"v1": ""}),
        ("Q: {v1}\nA:", "Q: why?\nA: ", None),
        ("{v1}", "anything\nat all", {"v1": "anything\nat all"}),
        ("{v1} and {v2}", "a and b and c", {"v1": "a", "v2": "b and c"}),
        ("{v1}, {v1}", "yes, yes", {"v1": "yes"}),
        ("{v1}, {v1}", "yes, no", None),
        ('{{"a": {v1}}}', '{"a": 1}', {"v1": "1"}),
        ("aXa{v1}aXa", "aXa", None),
        ("é{v1}ß", "é👋\u200dß", {"v1": "👋\u200d"}),
    ],
)
def test_a_template_matches_a_whole_text(template: str, text: str, values: dict[str, str] | None) -> None:
    parsed = TextTemplate.parse(template)
    assert parsed.match(text) == values
    assert parsed.text == template
    if values is not None:
        assert parsed.fill(values) == text


@given(st.lists(st.text(alphabet="ab{}\n é", max_size=6), min_size=1, max_size=4), st.data())
def test_what_a_template_was_filled_with_is_matched(fixed: list[str], data: st.DataObject) -> None:
    names = tuple(f"v{n}" for n in range(1, len(fixed)))
    template = TextTemplate(tuple(fixed), names)
    assert TextTemplate.parse(template.text) == template
    text = template.fill({name: data.draw(st.text(alphabet="ab{}\n é", max_size=6)) for name in names})
    values = template.match(text)
    assert values is not None
    assert template.fill(values) == text


@given(st.text())
def test_a_literal_text_is_a_template_of_itself(text: str) -> None:
    assert TextTemplate.parse(escaped(text)).fixed == (text,)


@pytest.mark.parametrize(
    ("text", "place"),
    [("{", "line 1, column 1"), ("a\n b } c", "line 2, column 4"), ("{a b}", "line 1, column 1"), ("{}", "column 1")],
)
def test_a_lone_brace_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(PromptError, match=place):
        TextTemplate.parse(text)


def test_a_new_text_may_neither_lose_nor_invent_a_variable() -> None:
    own = TextTemplate.parse("{v1} {v2}")
    check_variables(own, TextTemplate.parse("{v2} first, then {v1} and {v1} again"))
    with pytest.raises(PromptError, match=r"lacks the variable \{v2\}"):
        check_variables(own, TextTemplate.parse("only {v1}"))
    with pytest.raises(PromptError, match=r"has the variable \{v3\}.* it has the variables \{v1\}, \{v2\}"):
        check_variables(own, TextTemplate.parse("{v1} {v2} {v3}"))


def test_matching_a_long_text_takes_linear_time() -> None:
    template = TextTemplate.parse("".join(f"a{{v{n}}}" for n in range(30)) + "b")
    began = time.perf_counter()
    assert template.match("a" * 1_000_000) is None
    assert template.match("a" * 1_000_000 + "b") is not None
    assert time.perf_counter() - began < 5
