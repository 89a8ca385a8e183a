"""Prompt files: written, read back, and refused in one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.prompts.template import escaped
from leyden.core.errors import PromptError
from leyden.core.trainer.prompt_file import prompt_file, read_prompts, write_prompts

TEXTS = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    [
        "1e-5",
        "null",
        "yes",
        "2025-11-26",
        "  a\n b\n\n",
        "\n",
        "a\r\nb",
        "- x: |",
        "é\u2028\x85\t",
        "#c",
        "0o7",
        "a: b",
        "💡\n",
    ]
)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS | st.none()), max_size=3))
def test_a_file_reads_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str | None]]
) -> None:
    components = [
        PromptComponent(
            name=f"c{number}", agent=agent, role="user", position=number, text=escaped(text),
            new_text=new if new is None else escaped(new),
        )
        for number, (agent, text, new) in enumerate(rows)
    ]  # fmt: skip
    edits = PromptEdits(components=tuple(components))
    path = tmp_path_factory.getbasetemp() / "prompts.yaml"
    write_prompts(path, edits, ["A note: with {braces}."])
    assert read_prompts(path) == edits


def test_a_text_of_several_lines_is_written_line_by_line() -> None:
    component = PromptComponent(name="a", role="system", text="One: é\n  two\n", calls=2)
    text = prompt_file(PromptEdits(components=(component,)), ["A note."])
    assert "# A note.\ncomponents:\n- name: a\n  role: system\n  calls: 2\n  text: |\n    One: é\n      two\n" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("components: [", "is not YAML: while parsing"),
        ("- a", "must hold a list `components`"),
        ("components: []\nother: 1", "and nothing else, not `other`"),
        ("components: {}", "must hold a list `components`"),
        (
            "components:\n- {name: a, role: user, txt: x}",
            "component 1 'a': Object contains unknown field `txt`",
        ),
        ("components:\n- {name: a, role: user}", "component 1 'a': Object missing required field `text`"),
        ("components:\n- {name: a, role: boss, text: x}", "component 1 'a': Invalid enum value 'boss'"),
        ("components:\n- {name: a, role: user, text: 3}", "Expected `str`, got `int` - at `$.text`"),
        ("components:\n- 3", "component 1: Expected `object`, got `int`"),
        ("components:\n- {name: a, role: user, text: x, text: y}", "the key 'text' occurs twice"),
        ("components:\n- {name: a, role: user, text: 'a {'}", "text of the prompt component 'a': line 1, column 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(text)
    with pytest.raises(PromptError) as error:
        read_prompts(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xff")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "latin"):
        with pytest.raises(PromptError, match="cannot be read"):
            read_prompts(path)
    with pytest.raises(PromptError, match="cannot be written"):
        write_prompts(tmp_path / "no" / "prompts.yaml", PromptEdits())


@given(st.text(st.characters(codec="utf-8")) | st.sampled_from(["a\ncomponents: []", "\x85- x\u2028y: 1\r#", "\x07"]))
def test_notes_are_comments_whatever_names_are_in_them(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    edits = PromptEdits(components=(PromptComponent(name="c", role="system", text="a"),))
    file = tmp_path_factory.mktemp("prompts") / "prompts.yaml"
    write_prompts(file, edits, [f"Left out: the user message 1 of {name}.", name])
    assert read_prompts(file) == edits


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['id']",
        "&a x",
        "*a",
        "!!int 3",
        "<<",
        "? a",
        "%YAML 1.1",
        "---",
        "|",
        ">-\n a",
        "a: *b",
        "\x00\x1b",
    ],
)
def test_a_text_that_imitates_yaml_is_read_back_as_text(tmp_path: Path, text: str) -> None:
    component = PromptComponent(name=text, agent=text, node=text, role="tool", tool=text, text=escaped(text))
    write_prompts(tmp_path / "p.yaml", PromptEdits(components=(component,)))
    assert read_prompts(tmp_path / "p.yaml").components == (component,)


@pytest.mark.parametrize("value", ["!!python/object/apply:os.getpid []", "!!python/name:os.system"])
def test_a_file_makes_no_objects(tmp_path: Path, value: str) -> None:
    (tmp_path / "p.yaml").write_text(f"components:\n- {{name: a, role: system, text: {value}}}\n")
    with pytest.raises(PromptError, match="is not YAML"):
        read_prompts(tmp_path / "p.yaml")
