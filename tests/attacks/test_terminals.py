"""Attacks on whoever reads a log or a terminal: an agent's texts hold control sequences and secrets."""

import logging
from io import StringIO

import pytest
from rich.console import Console

from leyden.core.data.failure import Failure
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import SpanStatus
from leyden.core.masking import MaskingFilter
from leyden.core.runner.command import CommandAgent
from leyden.core.testing import nouns
from leyden.core.testing.running import error_of, run_one
from leyden.core.trainer.recorded import RecordedRollout
from leyden.core.trainer.tree import rollout_tree

KEY = "ghp_0123456789abcdefABCDEF0123456789"
SCRIPT = f"printf '\\033]0;title\\007\\033[2Jcleared {KEY}\\roverwritten\\n' >&2; exit 3"


async def test_a_commands_errors_cannot_steer_a_terminal_and_tell_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes sequences that set the title, clear the screen and overwrite a line, and a key."""
    ended, _ = await run_one(CommandAgent(["sh", "-c", SCRIPT.replace("{", "{{").replace("}", "}}")]))
    line = r"\x1b]0;title\x07\x1b[2Jcleared ghp_***\x0doverwritten"
    assert capsys.readouterr().err == f"{ended.rollout_id}: {line}\n"
    assert error_of(ended)["message"] == f"sh ended with exit code 3: {line}"


async def test_what_an_agent_raises_cannot_either() -> None:
    """The agent raises an error whose message holds an escape sequence and a key."""

    def agent(task: str) -> str:
        raise ValueError(f"\x1b[31mfailed\x9b with {KEY}\u202e")

    ended, _ = await run_one(agent)
    message = error_of(ended)["message"]
    assert message.startswith(r"\x1b[31mfailed\x9b with ghp_***\u202e")


def test_a_failure_is_stored_without_them() -> None:
    """The attacker chooses the text of a failure."""
    failure = Failure(kind="agent", type="E", message=f"\x1b[2J http://me:secret@host?key={KEY}")
    assert failure.metadata()["message"] == r"\x1b[2J http://***@host?key=***"


def test_the_tree_of_a_rollout_cannot_steer_a_terminal() -> None:
    """The agent gives a span a name, and its task and its error a text, that clear the screen."""
    attack = "\x1b[2J\x9b1mcleared"
    rollout = Rollout(rollout_id="r1", input={"question": attack}, start_time=0.0, status="succeeded")
    attempt = Attempt(rollout_id="r1", attempt_id="a1", sequence_id=1, start_time=0.0, status="failed")
    span = nouns.span(
        f"name {attack}", {}, rollout_id="r1", attempt_id="a1", status=SpanStatus(code="error", description=attack)
    )
    console = Console(file=StringIO(), width=200)
    console.print(rollout_tree(RecordedRollout(rollout=rollout, attempts=[(attempt, [span])])))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert text.count("cleared") == 3
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_log_records_hold_none(caplog: pytest.LogCaptureFixture) -> None:
    """The attacker's text is an argument of a log record."""
    logger = logging.getLogger("leyden.test.terminals")
    masking = MaskingFilter()
    logger.addFilter(masking)
    try:
        logger.warning("agent said %s", f"\x1b[2J{KEY}\r")
    finally:
        logger.removeFilter(masking)
    assert caplog.messages == [r"agent said \x1b[2Jghp_***\x0d"]
