"""`leyden serve`, `leyden runs` and `leyden train --server` on the command line."""

import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Start, ends, inherited, starting

from leyden.core.cli.main import run

TOKEN = "a-token-of-the-tests-of-servers"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `leyden serve --json`, on a free port; returns its process and what it printed."""
    with starting("serve", tmp_path, inherited("LEYDEN_SERVER_TOKEN", "LEYDEN_STORE")) as begin:
        yield begin


@pytest.mark.integration
def test_a_server_is_used_by_commands(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    process, started = start("--runs", "mine", "--store", "sqlite:///store.db")
    assert started == {"url": started["url"], "runs": "mine", "token": "in leyden-server.token"}
    kept = tmp_path / "leyden-server.token"
    for file in (kept, tmp_path / "store.db"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "mine/.server").stat().st_mode) == 0o700
    monkeypatch.setenv("LEYDEN_SERVER_TOKEN", kept.read_text().strip())
    monkeypatch.setenv("LEYDEN_SERVER", started["url"])
    assert run(["runs", "list"]) == 0
    assert capfd.readouterr().out.startswith("the server has no runs yet")
    for command in (["stop"], ["show"], ["follow"], ["resume"], ["remove"], ["rollback", "1"]):
        assert run(["runs", command[0], "none", *command[1:]]) == 2
        err = capfd.readouterr().err
        assert err == "leyden: this server has no run 'none'; its runs: none yet\n"
    assert run(["run", "a.py:agent", "--server", started["url"]]) == 2
    assert "no run that is queued or running; name one with --run" in capfd.readouterr().err
    monkeypatch.setenv("LEYDEN_SERVER_TOKEN", TOKEN)
    assert run(["runs", "list", "--json"]) == 2
    assert "does not accept the token in LEYDEN_SERVER_TOKEN" in capfd.readouterr().err
    assert ends(process, signal.SIGTERM) == 0


@pytest.mark.integration
def test_a_run_is_submitted_by_a_command(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The policy of this run is not there, which the run's own process finds out."""
    process, started = start(LEYDEN_SERVER_TOKEN=TOKEN)
    monkeypatch.setenv("LEYDEN_SERVER_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1 + 1"}\n')
    for name in ("a.py", "r.py"):
        (tmp_path / name).touch()
    given = [
        "train",
        "a.py:agent",
        "--tasks",
        "tasks.jsonl",
        "--policy",
        "nowhere",
        "--reward",
        "r.py:f",
        "--name",
        "a",
    ]
    server = ["--server", started["url"]]
    assert run([*given, *server, "--memory", "1GiB"]) == 1
    out, err = capfd.readouterr()
    assert "nowhere" in out and "run a is failed after 0 of 25 steps" in err
    assert f"continue with: leyden runs resume a --server {started['url']}" in err and "Traceback" not in out + err
    assert f"to begin anew, remove it first: leyden runs remove a --server {started['url']}" in err
    assert "leyden train --resume" not in out + err, "the server's own command has the run's budget"
    assert run([*given, *server]) == 2
    assert "run 'a' exists on this server; resume it, remove it with `leyden runs remove a`" in capfd.readouterr().err
    assert run(["runs", "list", *server, "--json"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert (status["name"], status["state"], status["memory"]) == ("a", "failed", 1 << 30)
    assert run(["train", "--resume", "a", *server, "--memory", "2GiB", "--detach"]) == 0
    assert "run a is running" in capfd.readouterr().out
    assert run(["runs", "stop", "a", *server]) in (0, 2)  # it may have failed already
    capfd.readouterr()
    assert run(["runs", "remove", "a", *server]) == 0
    (tmp_path / "a.py").unlink()
    assert run([*given, *server]) == 1
    out, err = capfd.readouterr()
    assert "a.py does not exist, counted from the current folder" in out and "`leyden serve` takes the folder" in out
    assert run(["runs", "remove", "a", *server]) == 0
    assert not (tmp_path / "runs/a").exists()
    assert ends(process, signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--memory", "much"], "--memory takes a size such as 8GiB"),
        (["serve", "--memory", "1KiB"], "memory must be from 64 MiB"),
        (["serve", "--project", "nowhere"], "--project nowhere is not a folder"),
        (["serve", "--host", "0.0.0.0"], "--insecure on a private network"),
        (["serve", "--advertise", "here"], "--advertise must be http(s)://HOST"),
        (["serve", "--store", "runs.db"], "'runs.db' is not a store's URI"),
        (["serve", "--store", "memory://"], "name a store that is kept"),
        (["runs", "list"], "give --server URL, or set LEYDEN_SERVER"),
        (["runs", "list", "--server", "http://10.0.0.5:8770"], "or --insecure on a private network"),
        (["train", "a.py:a", "--tasks", "t", "--policy", "p", "--memory", "8GiB"], "--memory has no effect without"),
        (["train", "a.py:a", "--tasks", "t", "--policy", "p", "--detach"], "--detach has no effect without --server"),
        (["train", "--resume", "a", "--server", "http://127.0.0.1:1", "--validate"], "have no effect with --server"),
        (["train", "--resume", "a", "--server", "http://127.0.0.1:1", "--cores", "0"], "--cores must be at least 1"),
        (["train", "--resume", "a", "--server", "http://127.0.0.1:1", "--seed", "1"], "--seed cannot change"),
        *(
            (["train", "a.py:a", *given, "--server", "http://127.0.0.1:1"], f"{given[0]} has no effect with --server")
            for given in (
                ["--runs", "other"],
                ["--host", "0.0.0.0"],
                ["--port", "9999"],
                ["--advertise", "https://foo"],
                ["--allow-host", "foo"],
            )
        ),
    ],
)
def test_what_cannot_work_is_one_line(
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYDEN_SERVER_TOKEN", TOKEN)
    for name in ("LEYDEN_SERVER", "LEYDEN_STORE", "LEYDEN_RUNS"):
        monkeypatch.delenv(name, raising=False)
    assert run(arguments) == 2
    err = capfd.readouterr().err
    assert says in err
    assert (
        "Traceback" not in err
        and len([line for line in err.splitlines() if "other machines can reach" not in line]) == 1
    )
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    monkeypatch.setenv("LEYDEN_SERVER_TOKEN", TOKEN)
    assert run(["runs", "list", "--server", f"http://127.0.0.1:{unused_tcp_port}"]) == 1
    assert "Connection refused; is leyden serve running there?" in capfd.readouterr().err
