"""`leyden store` as a process of its own, and stores that are opened by its URL."""

import asyncio
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Start, ends, inherited, starting

from leyden.core.cli.main import run
from leyden.core.errors import UsageError
from leyden.core.store.open import open_store
from leyden.core.testing.store_contract.shared import claimed, span_of


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `leyden store --json`, on a free port unless one is given; returns its process and what it printed."""
    with starting("store", tmp_path, inherited("LEYDEN_STORE_TOKEN")) as begin:
        yield begin


async def test_what_one_server_took_the_next_one_has(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, started = start("--uri", "sqlite:///kept.db")
    assert started == {"url": started["url"], "store": "sqlite:///kept.db", "token": "in leyden-store.token"}
    kept = tmp_path / "leyden-store.token"
    token = kept.read_text().strip()
    for file in (kept, tmp_path / "kept.db"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) >= 40

    monkeypatch.setenv("LEYDEN_STORE_TOKEN", token)
    store = await open_store(started["url"])
    assert store.capabilities == {"durable": True, "multi_process": True, "otlp_traces": True}
    assert store.otlp_traces_endpoint() == f"{started['url']}/v1/traces"
    got = await claimed(store)
    await store.add_span(span_of(got.attempt))
    await store.close()
    assert ends(process, signal.SIGTERM) == 0

    process, started = start("--uri", "sqlite:///kept.db")
    monkeypatch.delenv("LEYDEN_STORE_TOKEN")
    assert kept.read_text().strip() == token
    store = await open_store(started["url"].replace("://", f"://{token}@"))
    assert [span.name for span in await store.query_spans(got.rollout_id)] == ["chat"]
    await store.close()
    assert ends(process, signal.SIGINT) == 130


async def test_a_server_that_is_killed_has_what_it_acknowledged(
    start: Start, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--uri", "sqlite:///kept.db", "--port", str(unused_tcp_port)]
    monkeypatch.setenv("LEYDEN_STORE_TOKEN", "chosen")
    process, started = start(*options, LEYDEN_STORE_TOKEN="chosen")
    store = await open_store(started["url"])
    attempt = (await claimed(store)).attempt
    acknowledged = list[str]()

    async def write(first: int) -> None:
        for n in range(first, first + 100):
            stored = await store.add_span(span_of(attempt, f"{n:x}"))
            acknowledged.append(f"{n:x}".zfill(16))
            assert stored is None or stored.span_id == acknowledged[-1]  # None: it was written, and its answer lost

    writing = asyncio.gather(*(write(100 * writer) for writer in range(4)))
    while len(acknowledged) < 50:
        await asyncio.sleep(0.01)
    process.kill()
    process.wait()
    start(*options, LEYDEN_STORE_TOKEN="chosen")
    await writing
    spans = (await store.query_spans(attempt.rollout_id)).items
    assert sorted(span.span_id for span in spans) == sorted(acknowledged)
    assert len({span.sequence_id for span in spans}) == 400
    await store.close()


async def test_a_token_from_the_environment_is_not_written_down(start: Start, tmp_path: Path) -> None:
    _, started = start("--uri", "memory://", LEYDEN_STORE_TOKEN="chosen")
    assert started["token"] == "in LEYDEN_STORE_TOKEN"
    assert not list(tmp_path.iterdir())
    store = await open_store(started["url"].replace("://", "://any:chosen@"))
    await store.close()
    with pytest.raises(UsageError, match=f"the store at {started['url']} does not accept the token"):
        await open_store(started["url"].replace("://", "://wrong@"))
    with pytest.raises(UsageError, match="/some/path is not the URL of a store's server: it answered with status 404"):
        await open_store(started["url"].replace("://", "://chosen@") + "/some/path")


async def test_a_server_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEYDEN_STORE_TOKEN", raising=False)
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:9 needs its token: set LEYDEN_STORE_TOKEN"):
        await open_store("http://127.0.0.1:9")


@pytest.mark.parametrize("uri", ["user:secret@host", "nonsense://user:secret@host", "sqlite://user:secret@host"])
async def test_an_error_holds_no_password(uri: str) -> None:
    with pytest.raises(UsageError) as caught:
        await open_store(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "token", "says"),
    [
        (["--uri", "kept.db"], "t", "'kept.db' is not a store's URI"),
        (["--uri", "nonsense://x"], "t", "stores of the kind nonsense:// are not supported"),
        (["--uri", "memory://"], "two words", "printable ASCII without spaces"),
        (["--uri", "memory://", "--port", "70000"], "t", "--port"),
        (["--uri", "memory://", "--token-file", "no/such/folder"], "", "No such file or directory"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_served(
    arguments: list[str],
    token: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYDEN_STORE_TOKEN", token)
    assert run(["store", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "mode", "says"), [("token", 0o644, "chmod 600"), ("", 0o600, "is empty"), ("ключ", 0o600, "ASCII")]
)
def test_a_token_file_that_is_not_its_owners_alone_is_refused(
    text: str, mode: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEYDEN_STORE_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    assert run(["store", "--uri", "memory://", "--port", "0", "--token-file", "token"]) == 2
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["store", "--uri", "memory://", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
