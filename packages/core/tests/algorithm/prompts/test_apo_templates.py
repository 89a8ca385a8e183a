from pathlib import Path

import pytest

from leyden.core.algorithm.prompts.apo_options import APOConfig
from leyden.core.algorithm.prompts.apo_templates import extracted, filled
from leyden.core.errors import UsageError


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("Here:\n<new_prompt>\nDo it.\n\nWell.\n</new_prompt>\nDone.", "Do it.\n\nWell."),
        ("<new_prompt>first</new_prompt> or <new_prompt>\nsecond\n</new_prompt>", "second"),
        ("<new_prompt>\nUse\n```\ncode\n```\n</new_prompt>", "Use\n```\ncode\n```"),
        ("  Do it.\n", "Do it."),
        ("```text\nDo it.\n```", "Do it."),
        ("Do it.\n```\ncode\n```", "Do it.\n```\ncode\n```"),
        ("<new_prompt></new_prompt>", ""),
    ],
)
def test_the_text_in_an_answer(answer: str, text: str) -> None:
    assert extracted(answer) == text


def test_values_are_not_searched_for_places() -> None:
    assert filled("<prompt> | <gradient>", {"<prompt>": "a <gradient>", "<gradient>": "b"}) == "a <gradient> | b"


def test_a_template_is_a_text_or_a_file_and_the_options_keep_the_text(tmp_path: Path) -> None:
    file = tmp_path / "edit.txt"
    file.write_text("Change <prompt> by <gradient> — é")
    config = APOConfig(edit_template=[str(file), "<gradient> and <prompt>"], gradient_template="<prompt> <rollouts>")
    file.unlink()
    assert config.edit_templates() == ["Change <prompt> by <gradient> — é", "<gradient> and <prompt>"]
    assert config.gradient_templates() == ["<prompt> <rollouts>"]
    assert config.edit_template == config.edit_templates()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("Improve <prompt>.", "gradient_template lacks <rollouts>; it needs <prompt> and <rollouts>"),
        ("Improve\nit.", "gradient_template lacks <prompt> and <rollouts>"),
        ("missing.txt", "'missing.txt' is neither a text with <prompt> and <rollouts> nor a file that can be read: No"),
        ("binary", "nor a file that can be read: it is not UTF-8 text"),
        ("own.poml", "gradient_template own.poml: POML is not supported"),
        ("empty", "gradient_template lacks <prompt> and <rollouts>"),
        ("a\0b", "nor a file that can be read"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_in_one_line(
    template: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("")
    with pytest.raises(UsageError, match=says) as refused:
        APOConfig(gradient_template=template)
    assert "\n" not in str(refused.value)
