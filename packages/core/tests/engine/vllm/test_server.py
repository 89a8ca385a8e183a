"""`VllmServer` around a program that stands in for vLLM: how it is started, watched and ended."""

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.engine.vllm.server import VllmServer, check_installed
from leyden.core.errors import EngineError, UsageError

STANDS_IN = """
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(arguments["--model"], "w") as file:
    json.dump({"arguments": sys.argv[1:], "environment": dict(os.environ), "pids": [os.getpid(), child.pid]}, file)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

HTTPServer(("127.0.0.1", int(arguments["--port"])), Handler).serve_forever()
"""
BREAKS = """
import sys
print("Traceback (most recent call last):", file=sys.stderr)
print("RuntimeError: Unsupported CPU attention configuration: head_dim=24", file=sys.stderr)
print("it is all over", file=sys.stderr)
sys.exit(1)
"""

Make = Callable[[str], VllmServer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A server whose program is the given one."""

    def make(program: str) -> VllmServer:
        (tmp_path / "program.py").write_text(program)
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "program.py"} "$@"\n')
        python.chmod(0o755)
        options = VllmOptions(python=str(python), lora_rank=5, arguments=("--block-size", "16"))
        return VllmServer(options, log=tmp_path / "vllm.log")

    return make


async def test_it_is_started_on_the_loopback_with_a_key_and_ended_whole(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.setenv("HF_TOKEN", "for-the-hub")
    server = make(STANDS_IN)
    client = await server.start(str(tmp_path / "told.json"))
    assert await client.is_healthy()
    started = json.loads((tmp_path / "told.json").read_text())
    given, environment = started["arguments"], started["environment"]
    pairs = dict(pairwise(given))
    assert pairs["--host"] == "127.0.0.1"
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert pairs["--generation-config"] == "vllm"
    assert json.loads(pairs["--structured-outputs-config"]) == {"backend": "guidance"}
    assert pairs["--max-lora-rank"] == "8"
    assert pairs["--block-size"] == "16"
    assert environment["VLLM_API_KEY"] not in given
    assert len(environment["VLLM_API_KEY"]) > 20
    assert "OPENAI_API_KEY" not in environment
    assert environment["HF_TOKEN"] == "for-the-hub"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in environment
    await server.stop()
    for pid in started["pids"]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_it_tells_when_it_was_killed(make: Make, tmp_path: Path) -> None:
    server = make(STANDS_IN)
    await server.start(str(tmp_path / "told.json"))
    os.kill(json.loads((tmp_path / "told.json").read_text())["pids"][0], 9)
    assert await server.ended() == "signal 9"
    await server.stop()


async def test_a_server_that_does_not_come_up_says_why_in_one_line(make: Make, tmp_path: Path) -> None:
    server = make(BREAKS)
    with pytest.raises(
        EngineError, match="RuntimeError: Unsupported CPU attention configuration: head_dim=24"
    ) as caught:
        await server.start("nowhere")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "vllm.log") in str(caught.value)


async def test_a_server_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    server = VllmServer(VllmOptions(python=str(python), start_seconds=0.01), log=tmp_path / "vllm.log")
    with pytest.raises(EngineError, match="did not answer within 0 s"):
        await server.start("nowhere")


def test_a_python_without_vllm_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give its interpreter as LEYDEN_VLLM") as caught:
        check_installed(VllmOptions(python=sys.executable))
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be run"):
        check_installed(VllmOptions(python=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": 600}, "rank 1 to 512"),
        ({"cache_gib": 0}, "cache_gib at least 1"),
        ({"gpu_memory": 1.5}, "gpu_memory between 0 and 1"),
        ({"context_length": 1}, "context_length must be at least 3"),
        ({"transfer": "ipc", "lora_rank": 4}, "only with whole weights: leave it out"),
        ({"arguments": ("--port=80",)}, "cannot hold --port"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VllmOptions(**options)  # pyright: ignore[reportArgumentType]  # of several types


@pytest.mark.parametrize(("sleep", "device"), [(True, "cuda"), (True, "cpu"), (False, "cuda")])
async def test_a_server_that_is_to_sleep_is_started_for_it(
    make: Make, tmp_path: Path, *, sleep: bool, device: str
) -> None:
    usual = make(STANDS_IN)
    options = msgspec.structs.replace(usual.options, sleep=sleep)
    server = VllmServer(options, device=device, log=tmp_path / "vllm.log")
    await server.start(str(tmp_path / "told.json"))
    started = json.loads((tmp_path / "told.json").read_text())
    await server.stop()
    assert ("--enable-sleep-mode" in started["arguments"]) == (sleep and device == "cuda")
    assert started["environment"].get("VLLM_SERVER_DEV_MODE") == ("1" if sleep else None)
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in started["environment"]
