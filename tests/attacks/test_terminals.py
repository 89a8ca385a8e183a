"""Attacks on whoever reads a log or a terminal: an agent's texts hold control sequences and secrets."""

import logging
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from leyden.core.cli.commands.run import _show  # pyright: ignore[reportPrivateUsage]  # what the command prints by
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.failure import Failure
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.similar_messages import Tally
from leyden.core.data.span import SpanStatus
from leyden.core.masking import MaskingFilter
from leyden.core.runner.attempts.error_text import described
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing import factories
from leyden.core.testing.running import error_of, run_one
from leyden.core.trainer.monitoring.display import Bars
from leyden.core.trainer.preflight.report import CheckReport, check_table, failure
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.rollouts.tree import rollout_tree
from leyden.core.trainer.run_folder.report import HeldOutResult, RaisedAlert, RunReport, closing_table

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
    span = factories.span(
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


MARKUP = "[/nope] [bold]not bold[/] [link=https://evil.example]here[/link] :bomb: \\"


async def test_the_name_of_an_exceptions_class_cannot_either() -> None:
    """The agent makes a class whose name clears the screen and holds a key, and raises it, alone and in a group."""
    kind = type(f"\x1b[2JBoom {KEY}", (Exception,), {})

    def agent(task: str) -> str:
        raise kind("no") if task == "alone" else ExceptionGroup("several", [kind("no")])

    for task in ("alone", "group"):
        ended, spans = await run_one(agent, task)
        said = str(error_of(ended)) + str(
            [(span.attributes, span.status) for span in spans if "stack" not in span.name]
        )
        assert "Boom ghp_***" in said
        assert "\x1b" not in said.replace("exception.stacktrace", "")
        assert KEY not in said
    assert described(kind("no")) == r"\x1b[2JBoom ghp_***: no"


def test_text_of_agents_is_no_markup() -> None:
    """An agent's error reads like the markup of the library that prints: broken, and with a link."""
    tally = Tally()
    tally.add(f"ValueError: {MARKUP}\x1b[2J\x9b", "r1")
    alert = RaisedAlert(name="a", since=1, message=MARKUP)
    report = RunReport(name="r", seed=1, failed_rollouts=1, failures=tally.most_common(), alerts=[alert])
    report.dropped_groups, report.held_out = {MARKUP: 1}, {MARKUP: HeldOutResult(tasks=1)}
    found = CheckReport(results=(failure("rollouts", f"1 failed: {MARKUP}\x1b[2J", MARKUP),))
    console = Console(file=StringIO(), width=300, force_terminal=True, color_system=None)
    console.print(closing_table(report))
    console.print(check_table(found))
    bars = Bars(console)
    bars.show(f"check: failure: rollouts: 1 failed: {MARKUP}\x1b[2J")
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert text.count("[/nope] [bold]not bold[/] [link=https://evil.example]here[/link] :bomb:") >= 6
    assert "\x1b[2J" not in text
    assert "\x1b]8;" not in text
    assert "\x9b" not in text


def test_lines_of_json_hold_no_control_characters() -> None:
    """The agent's text holds what JSON need not escape, and what a terminal obeys."""
    said = {"said": "\x9b2J\x9d0;title\x9c\u202e\x7f"}
    line = json_line(said)
    assert line == r'{"said":"\u009b2J\u009d0;title\u009c\u202e\u007f"}' + "\n"
    assert msgspec.json.decode(line) == said


@pytest.mark.parametrize("json", [False, True])
def test_what_leyden_run_says_is_masked_and_written_out(json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The command holds a key, and the run that is worked for is called by a control sequence."""
    _show(f"1 workers run ('node', '--key', '{KEY}') for \x1b[2Jrun", json=json)
    said = capsys.readouterr().out
    assert KEY not in said
    assert "ghp_***" in said
    assert "\x1b" not in said
