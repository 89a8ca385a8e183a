"""Session of a run: the command, the environment and the address of the process that trains it."""

import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from leyden.core.errors import UsageError
from leyden.core.masking import without_own_tokens
from leyden.core.server.records import RunRecord
from leyden.core.trainer.agents.placement import LOOPBACK
from leyden.core.trainer.agents.runner_api import SERVED, TOKEN
from leyden.core.trainer.config import RunConfig, load_config, save_config
from leyden.core.trainer.preflight.machine import LIMIT
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.store_location import VARIABLE

PROGRAM = (sys.executable, "-m", "leyden.core.cli")
"""Command line of `leyden`, which the arguments of a session follow."""
OUTPUT_COLUMNS = "120"
"""Width of what a run prints, which clients show as it is."""
STORE_TOKEN = "LEYDEN_STORE_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """What all runs of a server have in common."""

    project: Path
    """Folder in which the runs' processes work: relative paths of agents, rewards and policies begin there."""
    store: str | None = field(default=None, repr=False)
    """URI of the store of all runs; None: each has a file of its own."""
    host: str = "127.0.0.1"
    advertise: str | None = None
    """URL at which other machines reach the server; its host is that of the runs, too."""
    allow_hosts: tuple[str, ...] = ()
    program: tuple[str, ...] = PROGRAM

    def host_of(self, config: RunConfig) -> str:
        """Return the address that a run listens on: only a run with remote agents listens beyond the loopback."""
        return self.host if config.runners.where == "remote" else LOOPBACK[0]

    def placed(self, config: RunConfig, port: int) -> RunConfig:
        """Return the configuration with this server's store and addresses.

        Raises UsageError for a store of its own, and for an algorithm that is code of its own.
        """
        if config.store is not None:
            raise UsageError("the server chooses the store of its runs: leave --store out")
        if ":" in config.algorithm:
            raise UsageError(
                f"algorithm {config.algorithm} is code, which the server would run in its own process: submit a "
                "registered algorithm, or train without a server"
            )
        advertise = None
        if config.runners.where == "remote" and self.advertise is not None:
            parts = urlsplit(self.advertise)
            advertise = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].removesuffix(f':{parts.port}')}:{port}"
        runners = msgspec.structs.replace(
            config.runners,
            host=self.host_of(config),
            port=port,
            advertise=advertise,
            allow_hosts=self.allow_hosts if config.runners.where == "remote" else (),
        )
        artifacts = config.artifacts
        if artifacts is not None and "://" not in artifacts:
            artifacts = str(self.project / artifacts)
        return msgspec.structs.replace(config, store=self.store, artifacts=artifacts, runners=runners)

    def check_port(self, folder: RunFolder, record: RunRecord) -> None:
        """Give the run another port if a process listens on its own, for instance after a restart of the machine."""
        config = load_config(folder.config_file)
        if is_port_free(config.runners.host, record.port) and config.runners.port == record.port:
            return
        record.port = free_port(config.runners.host)
        self.save_port(folder, config, record.port)

    def save_port(self, folder: RunFolder, config: RunConfig, port: int) -> None:
        """Write the port into the run's configuration."""
        runners = config.runners
        advertise = None
        if runners.advertise is not None:
            advertise = f"{runners.advertise.removesuffix(f':{runners.port}')}:{port}"
        runners = msgspec.structs.replace(runners, port=port, advertise=advertise)
        with folder.locked():
            save_config(msgspec.structs.replace(config, runners=runners), folder.config_file)


def session_command(record: RunRecord, runs: Path, plan: SessionPlan) -> list[str]:
    """Return the command line of the next session of a run.

    It always resumes: the folder of a new run has no checkpoint yet, and the session then begins with the first step.
    """
    words = [*plan.program, "train", "--resume", record.name, "--runs", str(runs)]
    return words if record.steps is None else [*words, "--steps", str(record.steps)]


def session_environment(record: RunRecord, plan: SessionPlan) -> dict[str, str]:
    """Return the environment of a run's process: the server's, without tokens but those that the run needs."""
    environment = {**without_own_tokens(os.environ), TOKEN: record.token, SERVED: record.name}
    environment |= {LIMIT: str(record.budget.memory), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("COLUMNS", OUTPUT_COLUMNS)
    if plan.store is not None:
        environment[VARIABLE] = plan.store
        if STORE_TOKEN in os.environ:
            environment[STORE_TOKEN] = os.environ[STORE_TOKEN]
    return environment


def is_port_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str) -> int:
    """Return a port that no process listens on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
