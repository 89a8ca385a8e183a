"""`PostgresServer`: a real PostgreSQL server in a temporary folder, for tests that kill it.

`server_programs` finds the PostgreSQL programs.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from leyden.core.testing.servers.ports import free_port
from leyden.core.testing.servers.server_programs import NO_POSTGRES, postgres_folder

USER, PASSWORD = "leyden", "p@ss/word"
"""User and password of the databases' owner; the password must be percent-encoded in a URI."""
QUOTED = "p%40ss%2Fword"
_STARTING_SECONDS = 60.0
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Settings for tests that kill no server: no write waits for the disk."""


def missing() -> str | None:
    """Return why no server can run here, or None."""
    return NO_POSTGRES if postgres_folder() is None else None


class PostgresServer:
    """Use it as `with PostgresServer() as server:`; as root, it runs as the user postgres or nobody.

    With `durable`, writes wait for the disk, as servers do by default.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._settings: Mapping[str, str] = {} if durable else _FAST
        self._folder = Path(tempfile.mkdtemp(prefix="leyden-pg-", dir=_open_folder()))
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count()
        self.port = free_port()

    def __enter__(self) -> "PostgresServer":
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def uri_of(self, database: str) -> str:
        """Return the URI of a database."""
        return f"postgresql://{USER}:{QUOTED}@127.0.0.1:{self.port}/{database}"

    def create(self, template: str | None = None) -> str:
        """Create a database, empty or as a copy of another; return its name."""
        name = f"store_{next(self._names)}"
        words = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template or "template0"))
        with self.connect("postgres") as connection:
            connection.execute(words)
        return name

    def empty(self, database: str) -> None:
        """Delete every row of a store, which takes a fifth of the time of a new database."""
        with self.connect(database) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            names = [Identifier(name) for (name,) in tables if name != "leyden_version"]
            if names:
                connection.execute(SQL("TRUNCATE {} RESTART IDENTITY").format(SQL(", ").join(names)))

    def connect(self, database: str) -> "psycopg.Connection[Any]":
        """Return a connection of the owner in autocommit mode."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        )

    def log(self) -> str:
        """Return the server's log."""
        return (self._folder / "log").read_text()

    def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        give_up = time.monotonic() + _STARTING_SECONDS
        self._process = self._started()
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > give_up:
                    raise
            if self._process.poll() is not None:  # shared memory of a killed server may be in use for a moment longer
                self._process = self._started()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server in its fast mode, which closes every connection."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and all of its processes, like a crash of the machine."""
        children = Path(f"/proc/{self._pid()}/task/{self._pid()}/children").read_text().split()
        self._signal(signal.SIGKILL)
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        self._process.send_signal(number)
        self._process.wait()
        self._process = None

    def _pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def _initialise(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        for path in (self._folder, password):
            shutil.chown(path, **_owner())
        self._run(
            *(str(_programs() / "initdb"), "--pgdata", str(self._folder / "data"), "--username", USER),
            *("--auth", "password", "--pwfile", str(password), "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        )

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **_as_owner())
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}")

    def _started(self) -> "subprocess.Popen[bytes]":
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(_programs() / "postgres"), "-D", str(self._folder / "data"), "-p", str(self.port), *options]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen[bytes](command, cwd="/", stdout=log, stderr=log, **_as_owner())


@cache
def _programs() -> Path:
    """Return the folder of PostgreSQL's programs, in a place where the server's user may run them."""
    folder = postgres_folder()
    if folder is None:
        raise RuntimeError(NO_POSTGRES)
    if os.geteuid() != 0 or _may_run(folder / "postgres"):
        return folder
    # For example, a checkout in root's own folder, which the server's user cannot read.
    copy = Path(tempfile.mkdtemp(prefix="leyden-pg-programs-", dir=_open_folder()))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    return _copied(folder, copy)


def _copied(programs: Path, folder: Path) -> Path:
    """Copy an installation into `folder`, with the libraries that a wheel installs beside its package."""
    package = programs.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():  # the programs find them by a relative path
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    target = folder / package.name / programs.parent.name
    shutil.copytree(programs.parent, target, symlinks=True)
    return target / programs.name


def _may_run(program: Path) -> bool:
    """Whether the server's user may run a program, with regard to every folder above it."""
    try:
        done = subprocess.run([program, "--version"], cwd="/", capture_output=True, text=True, **_as_owner())
    except PermissionError:
        return False
    return done.returncode == 0


def _open_folder() -> str | None:
    """Return a temporary folder that the server's user can access, since root's may be closed; None for the default."""
    if os.geteuid() != 0:
        return None
    folders = map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp"))
    return next((str(folder) for folder in folders if _is_open(folder)), None)


def _is_open(folder: Path) -> bool:
    path = folder.resolve()
    return path.is_dir() and all(target.stat().st_mode & 0o001 for target in (path, *path.parents))


def _owner() -> dict[str, str | int]:
    """Return the user that runs the server, since PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {"user": os.geteuid()}
    names = {entry.pw_name for entry in pwd.getpwall()}
    return {"user": "postgres" if "postgres" in names else "nobody"}


def _as_owner() -> dict[str, Any]:
    return {**_owner(), "extra_groups": []} if os.geteuid() == 0 else {}
