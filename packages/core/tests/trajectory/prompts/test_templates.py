"""Templates of texts that were sent at one place: the invariants, on any texts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.core.data.prompts.template import TextTemplate
from leyden.core.trajectory.prompts.templates import SeenText, find_templates

WORDS = st.sampled_from([
    *("You", "are", "a", "careful", "assistant", " ", "  ", "\n", "\n\n", "Context:", "</doc>", ".", "{", "}}", "é"),
    *("42", "👩\u200d👧", "\t", "\r\n"),
])  # fmt: skip
TEXTS = st.lists(WORDS, max_size=14).map("".join)
VALUES = st.lists(st.sampled_from(["a", "careful", "42", "are a", "You", "."]), max_size=2).map(tuple)


@settings(max_examples=400)
@given(st.lists(st.tuples(TEXTS, st.sampled_from(["r1", "r2", "r3"]), VALUES), min_size=1, max_size=6))
def test_each_text_belongs_to_one_template_and_is_the_whole_of_it(
    given: list[tuple[str, str, tuple[str, ...]]],
) -> None:
    seen = [SeenText(text, rollout_id, values) for text, rollout_id, values in given]
    found = find_templates(seen)
    assert sorted((one.text, one.rollout_id) for group in found for one in group.texts) == sorted(
        (one.text, one.rollout_id) for one in seen
    )
    for group in found:
        template = group.template()
        assert "" not in template.fixed[1:-1]
        assert TextTemplate.parse(template.text) == template
        for one in group.texts:
            values = template.match(one.text)
            assert values is not None
            assert template.fill(values) == one.text


def test_the_variables_of_texts_that_differ_in_labelled_places_keep_the_labels() -> None:
    texts = [
        f"# Question\n{question}\n# Pages\n{pages}\n# Answer\n"
        for question, pages in (("tell me who", "one page of text"), ("when was it?", "two pages"), ("why?", "none"))
    ]
    [found] = find_templates([SeenText(text, f"r{number}") for number, text in enumerate(texts)])
    assert found.template().text == "# Question\n{v1}\n# Pages\n{v2}\n# Answer\n"
