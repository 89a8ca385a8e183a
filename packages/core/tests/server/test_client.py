"""A server of scripted runs, used over HTTP by its Python client."""

import http.client
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from supervised_runs import MIB, TOKEN, run_config

import leyden.core as agl
from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.server.client import LightningClient
from leyden.core.server.connection import Connection
from leyden.core.server.lightning_server import LightningServer
from leyden.core.server.messages import VersionNotice
from leyden.core.server.service import ServerPlan
from leyden.core.trainer.agents.remote_workers import NoServer
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile

pytestmark = pytest.mark.integration


def requested(url: str, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_a_run_is_submitted_followed_and_resumed(server: LightningServer) -> None:
    client = server.client()
    run = client.submit(
        "agent.py:agent",
        ["x", {"question": "y"}],
        reward="reward.py:score",
        policy="policy",
        steps=3,
        name="a",
        cores=2,
    )
    steps = list[dict[str, Any]]()
    status = run.wait(on_step=steps.append, timeout=60)
    assert (status.state, status.step, status.reward, status.cores) == ("finished", 3, 0.75, 2)
    assert [line["step"] for line in steps] == [line["step"] for line in run.metrics()][-len(steps) :]
    assert [one.name for one in client.runs()] == ["a"]
    assert "".join(news.output for news in run.watch(output=0)).splitlines()[-1] == "step 3"
    run.resume(steps=4)
    assert run.wait(timeout=60).step == 4
    run.remove()
    assert client.runs() == []


def test_new_versions_and_their_prompts_are_pushed(server: LightningServer, tmp_path: Path) -> None:
    run = server.client().submit_config(run_config("slow", steps=6), ["x"])
    file = VersionFile(tmp_path / "runs/slow")
    seen = list[VersionNotice]()
    waiting = threading.Thread(target=lambda: run.wait(on_version=seen.append, since=-1, timeout=60))
    waiting.start()
    for number in (0, 1):
        prompts = {"system": agl.PromptTemplate(template=f"Prompt {number}", engine="f-string")}
        file.append(
            ModelVersion(run="slow", version=number, parent=None, created=1.0, algorithm="x", seed=0, prompts=prompts)
        )
    waiting.join(60)
    assert [(one.version, one.prompts) for one in seen] == [(0, {"system": "Prompt 0"}), (1, {"system": "Prompt 1"})]
    assert [one.version for one in run.versions()] == [0, 1]


def test_a_run_that_trains_is_rolled_back_only_to_a_version_that_is_there(server: LightningServer) -> None:
    run = server.client().submit_config(run_config("slow"), ["x"])
    with pytest.raises(RunError, match="has no versions yet"):
        run.rollback(1)
    assert run.status().state == "stopped"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"policy": "p", "store": "sqlite:///own.db"}, "the server chooses the store of its runs"),
        ({"policy": "p", "memory": "2TiB"}, "this server has only 7.812 GiB of memory and 2 cores"),
        ({"policy": "p", "memory": "8 apples"}, "memory takes a size such as 8GiB"),
        ({"policy": "p", "memory": "1KiB"}, "memory must be from 64 MiB"),
        ({"policy": "p", "cores": 3}, "give a smaller --memory or --cores"),
        ({"policy": "p", "device": "tpu"}, "device"),
        ({}, "names the Hugging Face model"),
    ],
)
def test_a_run_that_cannot_work_is_refused_in_one_line(
    server: LightningServer, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        server.client().submit("agent.py:agent", ["x"], reward="reward.py:score", name="a", **given)
    assert "\n" not in str(caught.value)
    assert server.client().runs() == []


def test_a_live_agent_is_refused(server: LightningServer) -> None:
    with pytest.raises(UsageError, match="given by import string"):
        server.client().submit(print, ["x"], policy="p")  # type: ignore[arg-type]


def test_every_request_needs_the_token(server: LightningServer) -> None:
    assert requested(server.url, "GET", "/healthz") == (200, b'{"server":"leyden serve"}')
    for method, path in (
        ("GET", "/runs"),
        ("POST", "/runs"),
        ("GET", "/runs/a"),
        ("DELETE", "/runs/a"),
        ("GET", "/runs/a/news"),
        ("GET", "/runs/a/metrics"),
        ("GET", "/runs/a/address"),
        ("POST", "/runs/a/stop"),
        ("POST", "/runs/a/resume"),
        ("POST", "/runs/a/rollback"),
    ):
        for authorization in (
            "",
            f"Basic {TOKEN}",
            "Bearer another-token-of-the-tests",
            f"Bearer {TOKEN}x",
            "Bearer é",
        ):
            status, body = requested(server.url, method, path, authorization=authorization)
            assert status == 401 and TOKEN.encode() not in body, (method, path, authorization)
    with pytest.raises(UsageError, match="does not accept the token that was given"):
        LightningClient(server.url, "another-token").runs()


def test_a_page_under_another_name_is_refused(server: LightningServer) -> None:
    status, _ = requested(server.url, "GET", "/runs", authorization=f"Bearer {TOKEN}", host="evil.example")
    assert status == 421


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/runs/none", 404),
        ("POST", "/runs/none/stop", 404),
        ("POST", "/runs/none/resume", 404),
        ("GET", "/runs/..%2f..%2fetc", 404),
        ("POST", "/runs", 400),
        ("GET", "/runs/none/news?offset=x", 400),
    ],
)
def test_a_request_that_cannot_be_answered_is_one_line(
    server: LightningServer, method: str, path: str, status: int
) -> None:
    found, body = requested(server.url, method, path, authorization=f"Bearer {TOKEN}")
    assert found == status and b"Traceback" not in body and b"\n" not in body


def test_a_client_that_cannot_work_says_why(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.delenv("LEYDEN_SERVER_TOKEN", raising=False)
    with pytest.raises(UsageError, match="set LEYDEN_SERVER_TOKEN"):
        LightningClient("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="unencrypted to another machine"):
        LightningClient("http://10.0.0.5:8770", TOKEN)
    with pytest.raises(UsageError, match="--server must be"):
        LightningClient("10.0.0.5", TOKEN)
    client = LightningClient(f"http://127.0.0.1:{unused_tcp_port}", TOKEN, patience=0.0)
    with pytest.raises(NoServer, match="no server answers at"):
        client.runs()


def test_a_client_that_waits_for_its_server_logs_that_once(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(NoServer, match="no server answers at"):
        Connection(url, TOKEN).get("/runs", dict[str, Any], patience=1.5)
    assert caplog.messages == [f"no server answers at {url}; waiting for it"]


def test_a_wait_that_takes_too_long_ends(server: LightningServer) -> None:
    run = server.client().submit_config(run_config("slow"), ["x"])
    with pytest.raises(LeydenError, match=r"has not ended within 0\.2 s"):
        run.wait(timeout=0.2)


def test_the_only_run_is_found_without_its_name(server: LightningServer) -> None:
    client = server.client()
    with pytest.raises(UsageError, match="has no run that is queued or running"):
        client.only_run()
    client.submit_config(run_config("slow"), ["x"])
    assert client.only_run().name == "slow"
    client.submit_config(run_config("slow-b"), ["x"])
    with pytest.raises(UsageError, match="2 runs: slow, slow-b; name one with --run"):
        client.only_run()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"host": "0.0.0.0"}, "would take tokens unencrypted"),
        ({"project": Path("nowhere")}, "--project nowhere is not a folder"),
        ({"advertise": "http://a/path"}, "without a path"),
    ],
)
def test_a_server_that_cannot_work_is_refused(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ServerPlan(runs=tmp_path, token=TOKEN, **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "short"}, "at least 16 printable ASCII characters"),
        ({"store": "memory://"}, "name a store that is kept"),
        ({"store": "runs.db"}, "is not a store's URI"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_can_be_tried_again(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        LightningServer(tmp_path / "runs", project=tmp_path, **given).start()
    with LightningServer(tmp_path / "runs", project=tmp_path, memory=64 * MIB, cores=1) as server:
        assert server.client().runs() == []
    with pytest.raises(UsageError, match="has not started"):
        assert server.url


@pytest.mark.parametrize("query", ["wait=soon", "step=1.5", "version=x", "offset=9999999999999999999"])
def test_a_query_that_is_no_number_is_refused_in_one_line(server: LightningServer, query: str) -> None:
    server.client().submit_config(run_config("slow"), ["x"])
    status, body = requested(server.url, "GET", f"/runs/slow/news?{query}", authorization=f"Bearer {TOKEN}")
    assert status == 400 and b"not a" in body and b"Traceback" not in body


@pytest.mark.parametrize("wait", ["nan", "-1", ""])
def test_a_request_that_names_no_time_is_answered_at_once(server: LightningServer, wait: str) -> None:
    server.client().submit_config(run_config("slow"), ["x"])
    assert requested(server.url, "GET", f"/runs/slow/news?wait={wait}", authorization=f"Bearer {TOKEN}")[0] == 200
