import pytest

from leyden.core.algorithm.prompts.components import PromptComponents
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import LLM, PromptTemplate, Resource
from leyden.core.errors import PromptError, UsageError

SYSTEM = PromptComponent(name="writer.system", agent="writer", node="draft", role="system", text="Today is {v1}.")
TOOL = PromptComponent(name="writer.tool.find", agent="writer", role="tool", tool="find", text="Finds rows.")
RESOURCES: dict[str, Resource] = {
    "llm": LLM(endpoint="http://models.example/v1", model="m"),
    "question": PromptTemplate(template="{question}"),
    "rules": PromptTemplate(template="{% for rule in rules %}{{ rule }}{% endfor %}", engine="jinja"),
    "prompts": PromptEdits(components=(SYSTEM, TOOL)),
}


def test_templates_and_components_of_edits_are_texts_by_name() -> None:
    components = PromptComponents(RESOURCES)
    assert components.names == ("question", "rules", "writer.system", "writer.tool.find")
    assert components.texts["writer.system"] == "Today is {v1}."
    assert components.component("question") is None
    assert components.component("writer.system") == SYSTEM


def test_a_candidate_becomes_resources_and_the_rest_stays() -> None:
    components = PromptComponents(RESOURCES)
    made = components.resources({**components.texts, "question": "Why {question}", "writer.system": "{v1} it is."})
    assert made["question"] == PromptTemplate(template="Why {question}")
    assert made["rules"] == RESOURCES["rules"]
    edits = made["prompts"]
    assert isinstance(edits, PromptEdits)
    assert edits.texts == {"writer.system": "{v1} it is.", "writer.tool.find": "Finds rows."}
    assert "llm" not in made


def test_patterns_choose_what_may_change() -> None:
    components = PromptComponents(RESOURCES, ["writer.*"])
    assert components.names == ("writer.system", "writer.tool.find")
    made = components.resources({"writer.system": "On {v1}.", "writer.tool.find": "Finds."})
    assert set(made) == {"prompts"}
    with pytest.raises(UsageError, match=r"no prompt is called 'reader\.\*'; the run has question, rules, writer"):
        PromptComponents(RESOURCES, ["writer.*", "reader.*"])


def test_a_run_without_prompts_is_refused() -> None:
    with pytest.raises(UsageError, match="the run has no prompts: give --prompt NAME=FILE"):
        PromptComponents({"llm": RESOURCES["llm"]})


def test_two_prompts_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two prompts of the run are called 'writer\.system'; rename one"):
        PromptComponents({"writer.system": PromptTemplate(template="x"), "prompts": RESOURCES["prompts"]})


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("question", "Why?", "lacks the variable question"),
        ("question", "{question} {mood}", "has the variable mood, which nothing fills"),
        ("rules", "{{ rules }} {{ tone }}", "has the variable tone"),
        ("rules", "{% for %}", "cannot be read"),
        ("question", "{question} {", "cannot be read"),
        ("writer.system", "Today.", "lacks the variable {v1}"),
    ],
)
def test_a_text_that_cannot_run_is_refused(name: str, text: str, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        PromptComponents(RESOURCES).check(name, text)


def test_a_text_with_its_variables_is_accepted() -> None:
    components = PromptComponents(RESOURCES)
    components.check("question", "{{json}} {question} and again {question}")
    components.check("rules", "{{ rules | length }} rules")
    components.check("writer.system", "{v1}!")


def test_a_description_names_the_place_and_the_variables() -> None:
    components = PromptComponents(RESOURCES)
    assert "{question}" in components.description("question")
    assert "Literal braces are doubled" in components.description("question")
    assert "{{ rules }}" in components.description("rules")
    assert "Literal braces" not in components.description("rules")
    described = components.description("writer.system")
    assert all(part in described for part in ("system", "agent writer", "node draft", "{v1}")), described
    assert "It has no variables." in components.description("writer.tool.find")
