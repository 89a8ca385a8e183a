"""`VllmServer`: starts a vLLM server in separate processes, waits until it answers, and stops it.

A small supervisor process (`runner/commands/supervise.py`) ends the server and all its child processes if the Leyden
process is killed. The server listens only on the loopback interface and needs a random key, which only its environment
holds. It runs in a folder that only its user can open, and imports nothing from there.
"""

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leyden.core.engine.base import MOST_TOP_LOGPROBS
from leyden.core.engine.vllm.client import VllmClient
from leyden.core.engine.vllm.options import PYTHON, VllmOptions
from leyden.core.errors import EngineError, UsageError

logger = logging.getLogger(__name__)

BASE = "base"
"""Name on the server of the weights it was started with."""
SUPERVISE = str(Path(__file__).parents[2] / "runner" / "commands" / "supervise.py")
"""Program that is run on its own; it imports nothing of Leyden."""
GRACE_SECONDS = 10
LOG_SECONDS = 15.0
"""Interval in seconds of the log line that the server is still starting."""
POLL_SECONDS = 0.25
LONGEST_TAIL = 200_000
"""Bytes at the end of the log that are searched for a reason."""
_SECRET = re.compile(r"(_API_KEY|_TOKEN|_SECRET|_PASSWORD)$|^(PYTHONPATH|PYTHONHOME)$")
_KEPT = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""Variables that are kept although they are secrets, because the server may load a model by its hub name."""
_ERROR = re.compile(r"(\w*(?:Error|Exception): .+)")


class VllmServer:
    """One server, which can be restarted with other weights. Must be used in a single event loop."""

    def __init__(self, options: VllmOptions, *, device: str = "cpu", log: Path | None = None) -> None:
        self.options, self.device = options, device
        self._log = log
        self._folder: Path | None = None
        """The server's current folder, which only its user can open; created when first needed."""
        self.client: VllmClient | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ended: asyncio.Task[str] | None = None
        self._log_start = 0

    @property
    def log(self) -> Path:
        """Path of the server's log over all starts; in the private folder unless a file was given."""
        return self._log or self._private_folder() / "vllm.log"

    def _private_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="leyden-vllm-"))
        return self._folder

    async def start(self, source: str) -> VllmClient:
        """Serve the model in a folder, or of a hub name; returns when the server answers.

        Raises EngineError, in one line, if it does not start.
        """
        await self.stop()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key = secrets.token_urlsafe(24)
        self._launch(self.command(source, port), _environment(self.options, self.device, key))
        client = VllmClient(f"http://127.0.0.1:{port}", key=key)
        try:
            await self._wait_healthy(client)
        except BaseException:
            await client.close()
            await self.stop()
            raise
        self.client = client
        return client

    async def ended(self) -> str:
        """Wait until the server ends, and return how it ended; EngineError if it was not started."""
        if self._ended is None:
            raise EngineError("the vLLM server was not started")
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """End the server and all its child processes; returns when none is left."""
        ended, self._ended = self._ended, None
        if ended is not None and self._control is not None and self._process is not None:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            await asyncio.wait([ended])
            self._control.close()
            await asyncio.to_thread(self._process.wait)
        folder = self._folder
        if folder is not None and self._log is not None:  # otherwise the folder holds the log, which is kept
            self._folder = None
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        client, self.client = self.client, None
        if client is not None:  # after the server, whose end closes all streams
            await client.close()

    def command(self, source: str, port: int) -> list[str]:
        """Return the server's command line."""
        options = self.options
        flags = ["--model", source, "--served-model-name", BASE, "--host", "127.0.0.1", "--port", str(port)]
        flags += ["--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        flags += ["--structured-outputs-config", '{"backend": "guidance"}']  # the trainer computes the same masks
        flags += ["--max-logprobs", str(MOST_TOP_LOGPROBS), "--disable-uvicorn-access-log"]
        if options.context_length is not None:
            flags += ["--max-model-len", str(options.context_length)]
        if options.eager if options.eager is not None else self.device == "cpu":
            flags += ["--enforce-eager"]
        if options.lora_rank:
            flags += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(options.served_rank)]
        if self.device != "cpu":
            flags += ["--gpu-memory-utilization", str(options.gpu_memory)]
            flags += ["--enable-sleep-mode"] if options.sleep else []
        if options.transfer == "ipc":
            flags += ["--weight-transfer-config", '{"backend": "ipc"}']
        return [options.interpreter, "-m", "vllm.entrypoints.openai.api_server", *flags, *options.arguments]

    def _launch(self, command: list[str], environment: dict[str, str]) -> None:
        descriptor = _open_log(self.log)
        self._control, child_socket = socket.socketpair()
        self._control.setblocking(False)
        arguments = [sys.executable, "-I", "-S", SUPERVISE, str(child_socket.fileno()), str(GRACE_SECONDS), "elsewhere"]
        with child_socket, os.fdopen(descriptor, "ab") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                [*arguments, *command],
                env=environment,
                cwd=self._private_folder(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[child_socket.fileno()],
                process_group=0,  # signals to Leyden's process group must not reach it
            )
        self._ended = asyncio.create_task(_read_end(self._control))

    async def _wait_healthy(self, client: VllmClient) -> None:
        began = logged = time.monotonic()
        assert self._ended is not None
        logger.info("Starting vLLM; its log is %s", self.log)
        if self.options.transfer == "ipc":
            logger.warning(
                "vllm.transfer=ipc opens endpoints of vLLM on the loopback interface that need no key and unpickle "
                "what they receive: any process that can connect to it can run code as you; transfer=restart opens "
                "none"
            )
        while not await client.is_healthy():
            now = time.monotonic()
            if self._ended.done():
                raise EngineError(f"vLLM did not start: {self.reason()} (full log: {self.log})")
            if now - began > self.options.start_seconds:
                seconds = f"{self.options.start_seconds:.0f} s"
                raise EngineError(f"vLLM did not answer within {seconds}; its log is {self.log}")
            if now - logged > LOG_SECONDS:
                logged = now
                logger.info("vLLM is starting, %.0f s so far: %s", now - began, self._last_line())
            await asyncio.wait([self._ended], timeout=POLL_SECONDS)
        logger.info("vLLM is ready after %.0f s", time.monotonic() - began)

    def reason(self) -> str:
        """Return the line of the log since the last start that most likely explains a failure."""
        lines = self._tail(self._log_start).splitlines()
        found = [match[1] for line in lines if (match := _ERROR.search(line))]
        marked = [match[1] for line in lines if " ERROR " in line and (match := _ERROR.search(line))]
        return ([*marked[:1], *found[-1:], self._last_line()][0])[:300].strip()

    def _last_line(self) -> str:
        return next((line.strip()[:200] for line in reversed(self._tail().splitlines()) if line.strip()), "nothing yet")

    def _tail(self, begin: int = 0) -> str:
        with self.log.open("rb") as file:
            file.seek(max(begin, self.log.stat().st_size - LONGEST_TAIL))
            return file.read().decode(errors="replace")


def check_installed(options: VllmOptions) -> None:
    """Raise UsageError, in one line, if the chosen interpreter has no vLLM. Does not import it."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    python = options.interpreter
    try:
        found = subprocess.run([python, "-c", find], capture_output=True, cwd="/", check=False).returncode == 0
    except OSError as error:
        raise UsageError(
            f"the engine vllm needs a Python interpreter with vLLM, and {python} cannot be run: {error}"
        ) from None
    if not found:
        raise UsageError(
            f"the engine vllm is not installed for {python}: create an environment with `pip install vllm`, and give "
            f"its interpreter as {PYTHON}=/that/bin/python"
        )


def _open_log(path: Path) -> int:
    """Open a log for appending, readable only by its user. Raises EngineError, in one line."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise EngineError(f"vLLM's log cannot be written to {path}: {why}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise EngineError(f"vLLM's log cannot be written to {path}: it is not a file of this user")
    os.fchmod(descriptor, 0o600)
    return descriptor


async def _read_end(control: socket.socket) -> str:
    """Return the supervisor's final line, or "killed" if it was killed itself."""
    data = b""
    with contextlib.suppress(OSError):
        while piece := await asyncio.get_running_loop().sock_recv(control, 256):
            data += piece
    return data.decode(errors="replace").strip() or "killed"


def _environment(options: VllmOptions, device: str, key: str) -> dict[str, str]:
    """Return the server's environment, without secrets except those in `_KEPT`, and with usage reports turned off."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or not _SECRET.search(name)}
    own = {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONSAFEPATH": "1"}
    if options.lora_rank:
        own["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if device == "cpu":
        own["VLLM_CPU_KVCACHE_SPACE"] = str(options.cache_gib)
    if options.transfer == "ipc" or options.sleep:  # opens endpoints without a key, only on the loopback
        own["VLLM_SERVER_DEV_MODE"] = "1"
    if options.transfer == "ipc":
        own["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return {**kept, **own}
