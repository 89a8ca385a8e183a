"""Every option of every command: what no command could work with is one line, exit code 2, and nothing is begun."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from leyden.core.cli.command import Command
from leyden.core.cli.main import app, run
from leyden.core.data.bounds import BOUNDS

NEEDED: dict[tuple[str, ...], list[str]] = {
    ("experiments", "run"): ["x"],
    ("experiments", "report"): ["x"],
    ("dev",): ["a.py:agent", "--tasks", "t.jsonl", "--endpoint", "http://127.0.0.1:9/v1"],
    ("train",): ["a.py:agent", "--tasks", "t.jsonl", "--policy", "p"],
    ("tune",): ["--config", "r.yaml", "--search", "learning_rate=1..2"],
    ("check",): ["a.py:agent", "--tasks", "t.jsonl", "--policy", "p"],
    ("exec",): ["--endpoint", "http://127.0.0.1:9/v1"],
    ("gateway",): ["--endpoint", "http://127.0.0.1:9/v1"],
    ("run",): ["--server", "http://127.0.0.1:9"],
    ("export",): ["r", "--to", "f"],
    ("show",): ["r"],
    ("why",): ["r"],
    ("rescore",): ["r", "--reward", "a.py:score"],
    ("models", "compare"): ["r", "r"],
    ("models", "rollback"): ["r", "1"],
    ("models", "export"): ["r", "f"],
    ("models", "promote"): ["r", "1"],
    ("models", "serve"): ["r"],
    ("stop",): ["r"],
    ("runs", "show"): ["r"],
    ("runs", "follow"): ["r"],
    ("runs", "stop"): ["r"],
    ("runs", "resume"): ["r"],
    ("runs", "rollback"): ["r", "1"],
    ("runs", "remove"): ["r"],
    ("policies", "fetch"): ["n"],
    ("import", "agent-lightning"): ["http://127.0.0.1:9", "--to", "sqlite:///imported.db"],
    ("prompts", "find"): ["a.py:agent", "--tasks", "t.jsonl", "--endpoint", "http://127.0.0.1:9/v1"],
    ("prompts", "try"): ["a.py:agent", "--tasks", "t.jsonl", "--endpoint", "http://127.0.0.1:9/v1", "--b", "b.yaml"],
    ("prompts", "apply"): ["f"],
    ("prompts", "tree"): ["r"],
}
"""What a command cannot do without."""
MAY_BE_ZERO = {
    "base_rate",
    "candidate",
    "drain",
    "eval_every",
    "idle_minutes",
    "learning_rate",
    "port",
    "ray_cpus",
    "steps",
    "record_within",
    "reward_threshold",
    "sampler_seed",
    "seed",
    "show",
}
REFUSED_LATER = {"patience", "temperature"}
"""0 is refused, by what reads them, in words of its own."""
MAY_BE_NEGATIVE = {"reward_threshold", "seed"}


def commands(group: typer.Typer = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for command in group.registered_commands:
        yield (*path, command.name or ""), command
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance, (*path, below.name or ""))


def options(*kinds: type) -> list[tuple[tuple[str, ...], str, str]]:
    """Command, name of the parameter and the option's longest name, of the options that are of one of these types."""
    found: list[tuple[tuple[str, ...], str, str]] = []
    for path, command in commands():
        for name, parameter in inspect.signature(command.callback).parameters.items():
            given: Any = (get_args(parameter.annotation) or (parameter.annotation, None))[0]
            described: Any = (get_args(parameter.annotation) or (None, None))[1]
            if not isinstance(described, typer.models.OptionInfo) or not {given, *get_args(given)} & {*kinds}:
                continue
            written = [word for word in (described.default, *(described.param_decls or ())) if isinstance(word, str)]
            found.append((path, name, max([*written, ""], key=len) or f"--{name.replace('_', '-')}"))
    return found


NUMBERS, TEXTS = options(int, float), options(str, Path, list[str], list[Path])


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The empty folder that commands are run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capfd: pytest.CaptureFixture[str], folder: Path, path: tuple[str, ...], *given: str) -> str:
    """The one line that a command says where it refuses what it was given."""
    command = [*path, *NEEDED.get(path, []), *given, *(["--", "ls"] if path == ("exec",) else [])]
    assert run(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("leyden: ")
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []
    return err


def test_there_are_options_to_look_at() -> None:
    assert len(NUMBERS) > 40
    assert {(("dev",), "count", "--count"), (("exec",), "timeout", "--timeout")} <= set(NUMBERS)
    assert {(("train",), "set_", "--set"), (("gateway",), "endpoint", "--endpoint")} <= set(TEXTS)


def test_every_command_looks_at_what_it_is_given() -> None:
    assert [path for path, command in commands() if not issubclass(command.cls, Command)] == []


def test_every_number_has_a_bound() -> None:
    assert {name for _, name, _ in NUMBERS} - BOUNDS.keys() == set()


@pytest.mark.parametrize(("path", "name", "option"), NUMBERS)
def test_a_number_that_nothing_could_work_with_is_named(
    capfd: pytest.CaptureFixture[str], folder: Path, path: tuple[str, ...], name: str, option: str
) -> None:
    wrong = ["nan", "inf", "-inf", "1e400", "1e300", "9" * 20, "-" + "9" * 20, "9" * 5000]
    if name not in MAY_BE_ZERO | REFUSED_LATER:
        wrong.append("0")
    if name not in MAY_BE_NEGATIVE:
        wrong.append("-1")
    for value in wrong:
        assert option in refused(capfd, folder, path, f"{option}={value}"), value


@pytest.mark.parametrize(("path", "name", "option"), TEXTS)
def test_an_empty_text_is_not_the_same_as_none(
    capfd: pytest.CaptureFixture[str], folder: Path, path: tuple[str, ...], name: str, option: str
) -> None:
    for given in ([option, ""], [f"{option}="]):
        error = refused(capfd, folder, path, *given)
        assert error == f"leyden: {option} must not be empty: give it a value, or leave it out\n"


@pytest.mark.parametrize("command", [["show", ""], ["show", "r", ""], ["why", ""], ["models", "export", "r", ""]])
def test_an_empty_argument_is_refused(capfd: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(command) == 2
    assert capfd.readouterr().err.startswith("leyden: an argument must not be empty")


@pytest.mark.parametrize(
    "command",
    [
        ["exec", "--endpoint", "http://127.0.0.1:9/v1", "echo", "hi"],
        ["dev", "--tasks", "t", "--policy", "p", "node", "echo", "hi"],
    ],
)
def test_a_command_without_the_two_dashes_is_explained(capfd: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(command) == 2
    error = capfd.readouterr().err
    assert error == (
        "leyden: unexpected words 'echo hi'; to run a command, write the whole command after --, as in "
        f"`leyden {command[0]} ... -- COMMAND`\n"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--reward-weight", "a=nan"], "--reward-weight a must be a finite number, not nan"),
        (["--reward-weight", "a=-1e16"], "--reward-weight a must be at least -1000000000000000.0, not -1e+16"),
        (["--reward-weight", "a=b"], "--reward-weight takes dimension=number"),
        (["--set", "learning_rate=NaN"], "--set learning_rate must be a finite number, not NaN"),
        (["--set", 'loss={"clip_low": 1e400}'], "--set loss must be a finite number"),
        (["--engine", "vllm", "--vllm", "start_seconds=Infinity"], "--vllm start_seconds must be a finite number"),
        (["--temperature", "0"], "training needs a temperature above 0"),
        (["--eval-every", "1", "--val", "t.jsonl", "--patience", "0"], "patience must be at least 1"),
    ],
)
def test_numbers_within_an_option_are_looked_at_too(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text('{"question": "?"}\n')
    command = ["train", "a.py:agent", "--tasks", "t.jsonl", "--policy", "p", *given]
    assert run(command) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize("command", [("dev",), ("exec",), ("gateway",), ("run",)])
@pytest.mark.parametrize(
    "url",
    [
        "not.a.url",
        "ftp://x/v1",
        "localhost:8000/v1",
        "http://",
        "http:///v1",
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1:0/v1",
        "http://127.0.0.1:port/v1",
        "http://[::1/v1",
        "http://a b/v1",
        "http://a\n/v1",
        "http://a..b/v1",
        "http://a/v1?key=x",
        "http://a/v1#x",
    ],
)
def test_an_address_that_no_request_could_be_sent_to_is_named(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: tuple[str, ...],
    url: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    option = "--server" if command == ("run",) else "--endpoint"
    error = refused(capfd, tmp_path, command, option, url)
    assert f"{option} must be http(s)://HOST[:PORT][/PATH], not {url!r}" in error
