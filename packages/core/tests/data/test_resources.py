from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.resources import MissingVariable, PromptEngine, PromptTemplate
from leyden.core.errors import PromptError


def jinja(template: str) -> PromptTemplate:
    return PromptTemplate(template=template, engine="jinja")


def test_an_f_string_is_filled_as_str_format_fills_it() -> None:
    values: dict[str, Any] = {"q": "why?", "n": 2.5, "task": SimpleNamespace(title="t", tags=["a", "b"]), "w": 6}
    template = "{q} {n:.2f} {task.title} {task.tags[1]} {q!r:>{w}} {{json}}"
    assert PromptTemplate(template=template).format(**values) == template.format(**values)
    assert PromptTemplate(template=template).variables() == ("n", "q", "task", "w")


def test_jinja_has_loops_filters_and_keeps_the_text_as_it_is() -> None:
    template = jinja("{% for q in questions %}{{ loop.index }}. {{ q|upper }}\n{% endfor %}<&>\n")
    assert template.format(questions=["a", "b"]) == "1. A\n2. B\n<&>\n"
    assert template.variables() == ("questions",)


@pytest.mark.parametrize("engine", ["f-string", "jinja"])
def test_a_missing_value_is_named_with_those_that_were_given(engine: PromptEngine) -> None:
    text = "{{ question }}" if engine == "jinja" else "{question}"
    template = PromptTemplate(template=text, engine=engine)
    with pytest.raises(MissingVariable, match=r"^the prompt template needs a value for question, and was given a, b"):
        template.format(b=1, a=2)
    with pytest.raises(KeyError):
        template.format()


def test_braces_of_json_are_explained() -> None:
    with pytest.raises(MissingVariable, match=r"needs a value for \"a\".*write \{\{ and \}\} for braces"):
        PromptTemplate(template='{"a": 1}').format()


@pytest.mark.parametrize(
    "template",
    [
        PromptTemplate(template="{x.__class__}"),
        PromptTemplate(template="{x[0].__class__.__mro__}"),
        PromptTemplate(template="{n:{x.__class__}}"),
        PromptTemplate(template="{g.gi_frame.f_builtins}"),
        PromptTemplate(template="{g.gi_code}"),
        PromptTemplate(template="{n:{g.gi_frame[0]}}"),
        jinja("{{ g.gi_frame }}"),
        jinja("{{ ('{0.__class__}'|attr('format'))(1) }}"),
        jinja("{{ '{n.__class__}'.format_map({'n': 1}) }}"),
        jinja("{{ ''.__class__ }}"),
        jinja("{{ x[0].__class__.__mro__ }}"),
        jinja("{{ x|attr('__class__') }}"),
        jinja("{{ '{0.__class__}'.format(x) }}"),
        jinja("{{ x.append(1) }}"),
        jinja("{{ self.__init__.__globals__ }}"),
        jinja("{{ cycler.__init__.__globals__ }}"),
    ],
)
def test_private_attributes_and_changes_of_values_are_refused(template: PromptTemplate) -> None:
    given = ["a"]
    with pytest.raises(PromptError, match=r"the prompt template (may not|cannot be filled)"):
        template.format(x=given, n=1, g=(n for n in given))
    assert given == ["a"]


@pytest.mark.parametrize(
    "template",
    [
        PromptTemplate(template="{x"),
        PromptTemplate(template="{x:d}"),
        PromptTemplate(template="{x[k]}"),
        PromptTemplate(template="{x.nothing}"),
        PromptTemplate(template="{}"),
        jinja("{{ x"),
        jinja("{% include 'file' %}"),
        jinja("{{ x.nothing }}"),
        jinja("{{ 1 / 0 }}"),
        jinja("{{ x|truncate(-5) }}"),
        jinja("{{ x|xmlattr }}"),
        jinja("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        jinja("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"),
        jinja("".join(f"{{% for i{n} in [1] %}}" for n in range(30)) + "{% endfor %}" * 30),
        jinja("{% for i in range(10 ** 9) %}{% endfor %}"),
    ],
)
def test_a_template_that_cannot_be_filled_is_a_prompt_error(template: PromptTemplate) -> None:
    with pytest.raises(PromptError):
        template.format(x="text")


def test_an_unknown_engine_is_named() -> None:
    template = PromptTemplate(template="", engine="poml")  # pyright: ignore[reportArgumentType]
    with pytest.raises(PromptError, match="no engine 'poml': use f-string or jinja"):
        template.format()


def test_a_record_without_an_engine_is_an_f_string() -> None:
    stored = msgspec.json.decode(b'{"type": "prompt_template", "template": "{q}"}', type=PromptTemplate)
    assert stored == PromptTemplate(template="{q}")


@given(st.text(), st.sampled_from(["f-string", "jinja"]))
def test_any_text_is_filled_or_is_a_prompt_error(text: str, engine: PromptEngine) -> None:
    template = PromptTemplate(template=text, engine=engine)
    try:
        names = template.variables()
        filled = template.format()
    except PromptError:
        return
    assert isinstance(filled, str)
    assert isinstance(names, tuple)
