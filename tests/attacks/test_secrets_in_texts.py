"""Attacks on whoever reads errors, logs and settings: secrets where the masker could miss them."""

import logging
from pathlib import Path
from typing import Any

import pytest

from leyden.core.cli.options import agent_name, held_out_name
from leyden.core.data.plain.values import message_of, stack_of
from leyden.core.errors import UsageError
from leyden.core.masking import known_secrets, mask_own_logs, mask_text
from leyden.core.runner.attempts.error_text import LONGEST_TEXT, described
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.runner.user_code.calls import TEXT_CHARACTERS, shortened
from leyden.core.testing.running import error_of, run_one
from leyden.core.trainer.config import RunConfig, check_in_clear
from leyden.core.trainer.services.store import kept_token

KEY = "ghp_0123456789abcdefABCDEF0123456789"
BODY = "0123456789abcdefABCDEF0123456789"
BLOCK = "-----BEGIN PRIVATE KEY-----\\n" + f"{BODY}\\n" * 5 + "-----END PRIVATE KEY-----\\n"


@pytest.mark.parametrize("at", [LONGEST_TEXT - 36, LONGEST_TEXT - 20, LONGEST_TEXT - 8])
def test_a_message_is_masked_before_it_is_cut(at: int) -> None:
    """The attacker has a key begin just before the place where a long message is cut."""
    text = described(ValueError("x" * (at - 1) + f" {KEY} " + "y" * LONGEST_TEXT))
    assert "0123" not in text
    assert "0123" not in shortened("x" * (TEXT_CHARACTERS - 20) + f" {KEY}", quote=False)


def test_exceptions_are_recorded_without_secrets() -> None:
    """An agent raises, and chains, errors with keys in them."""
    try:
        try:
            raise OSError(f"no luck with {KEY}")
        except OSError as error:
            raise ExceptionGroup(f"several with {KEY}", [KeyError(KEY)]) from error
    except ExceptionGroup as error:
        assert message_of(error) == "several with ghp_*** (1 sub-exception): KeyError: 'ghp_***'"
        assert "no luck with ghp_***" in (stack := stack_of(error))
        assert KEY not in stack


async def test_what_a_command_prints_over_several_lines_is_masked(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a private key, line by line, and ends in the middle of one."""
    script = f"printf '{BLOCK}' >&2; printf -- '-----BEGIN PRIVATE KEY-----\\n{BODY}\\n{BODY}' >&2; exit 3"
    ended, _ = await run_one(CommandAgent(["sh", "-c", script]))
    assert BODY not in capsys.readouterr().err
    assert BODY not in error_of(ended)["message"]


async def test_a_variable_that_a_command_is_given_is_masked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but --env says that the variable holds a secret; the command prints it."""
    monkeypatch.setenv("MY_SETTING_7", "an-ordinary-word-7")
    ended, _ = await run_one(CommandAgent(["sh", "-c", "echo $MY_SETTING_7 >&2; exit 3"], ["MY_SETTING_7"]))
    assert error_of(ended)["message"] == "sh ended with exit code 3: ***"
    assert capsys.readouterr().err == f"{ended.rollout_id}: ***\n"


def test_a_password_in_a_variable_is_known_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is called by no secret's name, and the agent prints the password alone."""
    monkeypatch.setenv("MY_DATABASE", "postgresql://me:correct-horse-8@db/things")
    assert "correct-horse-8" in known_secrets()
    assert mask_text("it is correct-horse-8") == "it is ***"


@pytest.mark.parametrize(
    "given",
    [
        {"experiment": KEY},
        {"agent_match": f"{KEY}|critic"},
        {"attribute_match": {"name": KEY}},
    ],
)
def test_a_name_or_pattern_with_a_key_is_refused_before_it_is_written(given: dict[str, Any]) -> None:
    """A user pastes a key where a name belongs: masked, `config.yaml` could not be read again."""
    config = RunConfig(name="run", policy="p", **given)
    with pytest.raises(UsageError, match=rf"{next(iter(given))} seems to contain a secret \('ghp_\*\*\*"):
        check_in_clear(config)
    check_in_clear(RunConfig(name="run", policy="p", agent_match="critic|judge", experiment="monday"))


def test_the_token_that_a_store_has_made_for_itself_is_known(tmp_path: Path) -> None:
    """The server's log shows the token of its first start, when it was made, as well as of later ones."""
    token = kept_token(tmp_path / "leyden-store.token")
    assert mask_text(f"refused {token}!") == "refused ***!"


def test_names_that_are_made_of_names_of_files_hold_none() -> None:
    """A user's file is called like a key."""
    assert held_out_name(f"a/{KEY}.jsonl") == "ghp_***"
    assert "0123" not in agent_name(f"a/{KEY}.py:agent")


def test_what_leyden_logs_is_masked_whichever_handler_it_goes_to(caplog: pytest.LogCaptureFixture) -> None:
    """The application has handlers of its own; other loggers are not Leyden's to change."""
    before = logging.getLogRecordFactory()
    try:
        mask_own_logs()
        mask_own_logs()
        logging.getLogger("leyden.test.own").warning("failed with %s", KEY)
        logging.getLogger("other").warning("failed with %s", KEY)
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.messages == ["failed with ghp_***", f"failed with {KEY}"]
