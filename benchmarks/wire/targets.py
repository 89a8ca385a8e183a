"""Targets of the benchmark: each a process (or several) that answers the reference request on a port of its own."""

import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.data.production import CaptureBegin, CaptureBegun
from wire.reference import MODEL, request_body

ATTEMPTS = 64
"""Attempts that share the calls of a measurement."""
PATIENCE_SECONDS = 90.0
Serve = Callable[[Connection, str], Coroutine[Any, Any, None]]


class Target:
    """Something that answers, and what it costs."""

    def __init__(self, name: str, pid: int, port: int, paths: list[str], headers: str = "") -> None:
        self.name, self.port, self.paths = name, port, paths
        self._pid, self._headers = pid, headers
        self._bodies = {stream: request_body(stream=stream) for stream in (False, True)}

    def request(self, n: int, *, stream: bool) -> bytes:
        """Return the bytes of a call."""
        body = self._bodies[stream]
        head = f"POST {self.paths[n % len(self.paths)]} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{self._headers}"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and its children (Linux)."""
        return sum(_cpu_ticks(pid) for pid in _family(self._pid)) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Resident memory of the process and its children (Linux)."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in _family(self._pid))
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def stop(self) -> None:
        """End the process."""


class OwnServer(Target):
    """One of our own servers, in a spawned process with uvloop."""

    def __init__(self, name: str, serve: Serve, argument: str = "") -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_run, args=(serve, there, argument), daemon=True)
        self._process.start()
        port, paths = self._pipe.recv()
        super().__init__(name, self._process.pid or 0, port, paths)

    def stop(self) -> None:
        """Tell it, and wait."""
        self._pipe.send(None)
        self._process.join(10)


class ForeignServer(Target):
    """A server that is started by a command and answers when its port does."""

    def __init__(
        self, name: str, command: list[str], port: int, *, folder: Path, paths: list[str], headers: str = ""
    ) -> None:
        self._log = (folder / f"{name}.log").open("wb")
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _answers(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"{name} did not start: {(folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.2)
        super().__init__(name, self._process.pid, port, paths, headers)

    def stop(self) -> None:
        """Terminate it."""
        self._process.terminate()
        self._process.wait(20)
        self._log.close()


class LeydenGateway(Target):
    """`leyden gateway` as users start it, with attempts that were begun over HTTP."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        token = "benchmark"
        command = [sys.executable, "-m", "leyden.core.cli", "gateway", "--json", "--port", "0", *arguments]
        self._process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "LEYDEN_CAPTURE_TOKEN": token}, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} did not start")
        url: str = json.loads(line)["url"]
        paths = [f"/a/{_begin(url, token)}/v1/chat/completions" for _ in range(ATTEMPTS)]
        super().__init__(name, self._process.pid, int(url.rpartition(":")[2]), paths)

    def stop(self) -> None:
        """Terminate it."""
        self._process.terminate()
        self._process.wait(30)


def leyden_gateway(folder: Path, upstream: int, store: str, workers: int) -> Target:
    """`leyden gateway` in front of the engine's endpoint, with so many worker processes."""
    options = ["--endpoint", f"http://127.0.0.1:{upstream}/v1", "--store", store, "--workers", str(workers)]
    return LeydenGateway(f"gateway-workers-{workers}", options, folder)


def nginx(folder: Path, upstream: int) -> Target | None:
    """Run nginx as a plain reverse proxy with kept connections; None where it is not installed."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        return None
    port = free_port()
    (folder / "nginx.conf").write_text(
        "daemon off; worker_processes 1; pid nginx.pid; error_log nginx.err;\n"
        "events { worker_connections 1024; }\n"
        "http { access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u;\n"
        f"scgi_temp_path s; upstream engine {{ server 127.0.0.1:{upstream}; keepalive 128; }}\n"
        f"server {{ listen 127.0.0.1:{port}; client_max_body_size 16m; keepalive_requests 10000000;\n"
        'location / { proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";\n'
        "proxy_buffering off; proxy_buffers 8 64k; proxy_buffer_size 64k; } } }\n"
    )
    command = [program, "-p", str(folder), "-c", "nginx.conf"]
    return ForeignServer("nginx", command, port, folder=folder, paths=["/v1/chat/completions"])


def litellm(python: Path, folder: Path, upstream: int) -> Target:
    """LiteLLM's proxy: one worker, no database."""
    port = free_port()
    parameters = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    settings = {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "general_settings": {"master_key": "sk-benchmark"},
        "litellm_settings": {"telemetry": False},
    }
    (folder / "litellm.json").write_text(json.dumps(settings))  # JSON is YAML
    os.replace(folder / "litellm.json", folder / "litellm.yaml")
    command = [str(python.parent / "litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    return ForeignServer(
        "litellm",
        [*command, "--num_workers", "1"],
        port,
        folder=folder,
        paths=["/v1/chat/completions"],
        headers="authorization: Bearer sk-benchmark\r\n",
    )


def agent_lightning(python: Path, folder: Path, upstream: int) -> Target:
    """Microsoft's Agent Lightning 1.0 gateway."""
    port = free_port()
    settings = [
        f"port={port}",
        "host=127.0.0.1",
        "key=benchmark",
        f"default_proxy.model_name={MODEL}",
        f"hydra.run.dir={folder}",
    ]
    rollouts = [f"rollout-{n}" for n in range(64)]
    mode = "attempt/a/mode/train/openai/v1/chat/completions"
    target = ForeignServer(
        "agent-lightning-1.0",
        [str(python), "-m", "agentlightning.server", *settings],
        port,
        folder=folder,
        paths=[f"/proxy/rollout/{name}/{mode}" for name in rollouts],
        headers="authorization: Bearer benchmark\r\n",
    )
    _post(port, "/api/models", [{"model": MODEL, "endpoint": f"http://127.0.0.1:{upstream}/v1"}])
    queued: list[dict[str, object]] = [{"rollout_id": name, "input": {}, "is_train": True} for name in rollouts]
    _post(port, "/api/rollouts", queued)
    return target


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run(serve: Serve, pipe: Connection, argument: str) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(pipe, argument))
    else:
        uvloop.run(serve(pipe, argument))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _begin(url: str, token: str) -> str:
    """Begin a captured rollout; returns the token of its attempt."""
    body, headers = msgspec.msgpack.encode(CaptureBegin()), {"authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/capture/begin", body, headers), timeout=10) as answer:
        return msgspec.msgpack.decode(answer.read(), type=CaptureBegun).token


def _post(port: int, path: str, body: object) -> None:
    headers = {"authorization": "Bearer benchmark", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def _family(pid: int) -> list[int]:
    """Return a process and everything below it."""
    found = [pid]
    for process in found:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
