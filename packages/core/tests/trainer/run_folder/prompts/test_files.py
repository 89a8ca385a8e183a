from pathlib import Path

import pytest

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import PromptTemplate
from leyden.core.errors import UsageError
from leyden.core.trainer.prompt_file import read_prompts
from leyden.core.trainer.run_folder.prompts.files import export_prompts, read_prompt

PROMPTS = {
    "plain": PromptTemplate(template="{q}\r\nno line end at the end é"),
    "main.prompt": PromptTemplate(template="{{ q }}\n\n", engine="jinja"),
}


def test_prompts_are_read_back_as_they_were(tmp_path: Path) -> None:
    export_prompts(PROMPTS, tmp_path / "prompts")
    names = sorted(path.name for path in (tmp_path / "prompts").iterdir())
    assert names == ["main.prompt.j2", "plain.txt"]
    assert {path.stem: read_prompt(path) for path in (tmp_path / "prompts").iterdir()} == PROMPTS


def test_an_export_replaces_the_one_before(tmp_path: Path) -> None:
    export_prompts(PROMPTS, tmp_path / "prompts")
    export_prompts({"other": PromptTemplate(template="x")}, tmp_path / "prompts")
    assert [path.name for path in (tmp_path / "prompts").iterdir()] == ["other.txt"]
    export_prompts({}, tmp_path / "prompts")
    assert not (tmp_path / "prompts").exists()


def test_prompt_edits_are_a_file_that_prompts_options_take(tmp_path: Path) -> None:
    edits = PromptEdits(
        components=(
            PromptComponent(name="system", role="system", text="Today is {v1}.", new_text="It is {v1}:\n{{x}}\n"),
            PromptComponent(name="tool", role="tool", tool="add", text="Adds."),
        )
    )
    export_prompts({**PROMPTS, "found": edits}, tmp_path / "prompts")
    assert sorted(path.name for path in (tmp_path / "prompts").iterdir()) == [
        "main.prompt.j2",
        "plain.txt",
        "prompts.yaml",
    ]
    assert read_prompts(tmp_path / "prompts/prompts.yaml") == edits
    export_prompts({"one": edits, "two": PromptEdits()}, tmp_path / "prompts")
    assert sorted(path.name for path in (tmp_path / "prompts").iterdir()) == ["one.yaml", "two.yaml"]
    assert read_prompts(tmp_path / "prompts/one.yaml") == edits


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.txt cannot be read: No such file"):
        read_prompt(tmp_path / "missing.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"binary\.txt cannot be read: 'utf-8'"):
        read_prompt(tmp_path / "binary.txt")
