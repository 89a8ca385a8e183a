"""Python interface of the server itself: `LightningServer` runs it in a thread of this process."""

import asyncio
import atexit
import secrets
import threading
from pathlib import Path
from types import TracebackType

from leyden.core.errors import LeydenError, UsageError
from leyden.core.server.budget import read_size
from leyden.core.server.client import LightningClient
from leyden.core.server.service import ServerPlan, serve_runs
from leyden.core.trainer.event_loop import run_loop


class LightningServer:
    """Trains several runs at once on this machine, as `leyden serve` does. A context manager starts and stops it.

    Runs are processes. They stop with the server, and go on when a server with the same `runs` starts again.

    Args:
        runs: Folder of the runs.
        store: URI of a store for the rollouts of all runs; by default, each run has a file in its folder.
        memory: Memory of all runs together, in bytes or as `16GiB`; by default nine tenths of the machine's.
        cores: Number of cores of all runs together; by default all.
        project: Folder with the agents' code, in which the processes of the runs work.
        token: Token that clients need; by default a new one.
        host: Address to listen on. One that other machines reach needs `insecure`, or `advertise` with an https URL.
        port: Port to listen on; 0 chooses a free one.
    """

    def __init__(  # noqa: PLR0913 -- the options of `leyden serve`
        self,
        runs: str | Path = "runs",
        store: str | None = None,
        *,
        memory: int | str | None = None,
        cores: int | None = None,
        project: str | Path = ".",
        token: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        insecure: bool = False,
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        plan = ServerPlan(
            runs=Path(runs),
            token=self.token,
            store=store,
            project=Path(project),
            memory=read_size(memory, "memory") if isinstance(memory, str) else memory,
            cores=cores,
            host=host,
            port=port,
            advertise=advertise,
            insecure=insecure,
        )
        self._begin(plan)

    @classmethod
    def of(cls, plan: ServerPlan) -> "LightningServer":
        """Return a server with a plan, whose token is a text."""
        server = cls.__new__(cls)
        server.token = str(plan.token)
        server._begin(plan)
        return server

    def _begin(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._url: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None

    @property
    def url(self) -> str:
        """Root URL of the server; raises UsageError before it has started."""
        if self._url is None:
            raise UsageError("the server has not started: call start(), or use it in a with statement")
        return self._url

    def start(self) -> "LightningServer":
        """Start the server, and go on with the runs in its folder. Raises what keeps it from starting."""
        if self._thread is not None:
            raise UsageError("the server has started already")
        self._ready.clear()
        self._error = None
        self._thread = threading.Thread(target=self._serve, name="leyden serve", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._url is None:
            self._thread.join()
            self._thread = None
            raise self._error or LeydenError("the server ended before it was ready")
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stop the server and its runs, and return when their processes have ended. Raises what ended it early."""
        if self._thread is None:
            return
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._thread = self._url = None
        atexit.unregister(self.stop)
        if self._error is not None:
            raise self._error

    def client(self) -> LightningClient:
        """Return a client of this server."""
        return LightningClient(self.url, self.token, insecure=True)

    def __enter__(self) -> "LightningServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
            await serve_runs(self._plan, self._started, self._stopped)

        try:
            run_loop(serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    def _started(self, url: str) -> None:
        self._url = url
        self._ready.set()
