import json
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from leyden.core.errors import AgentNotFound
from leyden.core.runner.attempts.error_text import LONGEST_TEXT, described, key_advice, raised, user_place, user_stack
from leyden.core.runner.user_code.loading import load_object
from leyden.core.tracing.wire import routing


class Settings(BaseModel):
    api_key: str
    size: int


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def failing(function: Any) -> BaseException:
    with pytest.raises(BaseException) as found:
        function()
    return found.value


def test_every_problem_of_a_validation_error_is_named_and_no_web_page() -> None:
    text = described(failing(lambda: Settings.model_validate({"size": "no"})))
    assert text.startswith("ValidationError: 2 validation errors for Settings api_key Field required")
    assert "size Input should be a valid integer" in text
    assert "further information" not in text


def test_the_place_and_the_traceback_are_those_of_the_users_code(tmp_path: Path) -> None:
    error = failing(reads_json)
    line = reads_json.__code__.co_firstlineno + 1
    assert user_place(error) == f"{__file__}, line {line}"
    library = '  File "<frozen runpy>", line 1, in run\n'
    text = "".join(traceback.format_exception(error)).replace("last):\n", f"last):\n{library}", 1)
    shown = user_stack(text).splitlines()
    assert library.strip() in text
    assert (shown[0], shown[-1]) == (
        "Traceback (most recent call last):",
        f"{type(error).__module__}.{described(error)}",
    )
    assert __file__ in shown[1]
    assert "raw_decode" in "\n".join(shown)
    assert user_stack(f"Traceback (most recent call last):\n{library}ValueError: x\n") == ""


def test_what_is_inside_a_group_of_errors_is_named() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [ValueError("first")]), KeyError("second")])
    assert described(group) == "ValueError: first; KeyError: 'second'"
    many = ExceptionGroup("tasks", [ValueError(str(n)) for n in range(5)])
    assert described(many) == "ValueError: 0; ValueError: 1; ValueError: 2; and 2 more"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (KeyError("lost"), "KeyError: 'lost'"),
        (StopIteration(), "StopIteration"),
        (Unreadable(), "Unreadable: (its text cannot be read: RuntimeError)"),
        (Leaves(), "Leaves: (its text cannot be read: SystemExit)"),
        (SyntaxError("invalid syntax", ("agent.py", 3, 1, "x = =", 3, 2)), "SyntaxError: invalid syntax"),
    ],
)
def test_an_error_is_one_line(error: BaseException, text: str) -> None:
    assert described(error) == text


def test_a_note_is_part_of_the_text_and_a_very_long_one_is_cut() -> None:
    error = ValueError("wrong")
    error.add_note("while reading row 7")
    assert described(error) == "ValueError: wrong while reading row 7"
    assert len(described(ValueError("x" * 10_000))) < LONGEST_TEXT + 20


def reads_json() -> None:
    json.loads("{")  # raises inside the standard library


def test_the_line_named_is_the_users_own_not_a_librarys() -> None:
    line = reads_json.__code__.co_firstlineno + 1
    assert raised(failing(reads_json)).endswith(f"({__file__}, line {line})")


def test_the_line_named_is_none_of_ours_that_is_hidden_from_warnings() -> None:
    routing.install()
    try:
        error = failing(lambda: OpenAI(api_key=None, base_url=3))  # pyright: ignore[reportArgumentType]  # a mistake
    finally:
        routing.uninstall()
    assert "_bootstrap" in str([frame.filename for frame in traceback.extract_tb(error.__traceback__)])
    assert re.search(rf"\({re.escape(__file__)}, line \d+\)$", raised(error))


def test_an_error_that_was_never_raised_has_no_line() -> None:
    assert raised(ValueError("wrong")) == "ValueError: wrong"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("KeyError: 'ANTHROPIC_API_KEY'", "such as ANTHROPIC_API_KEY=unused"),
        ("ValueError: no api_key was given", "such as OPENAI_API_KEY=unused"),
        ("KeyError: 'question'", ""),
        ("ValueError: the monkey is missing", ""),
        ("AuthenticationError: Incorrect API key provided: sk-12. You can find your API key at example.com.", ""),
    ],
)
def test_a_missing_key_is_recognised(text: str, advice: str) -> None:
    assert advice in key_advice(text)
    assert bool(key_advice(text)) == bool(advice)


def test_a_client_without_a_key_says_that_any_value_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenAI.__module__ == "openai"
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "needs_a_key.py"
    path.write_text("from openai import OpenAI\n\nclient = OpenAI()\n")
    with pytest.raises(AgentNotFound) as error:
        load_object(f"{path}:client")
    assert f"({path}, line 3)" in str(error.value)
    assert "any value works, such as OPENAI_API_KEY=unused" in str(error.value)
