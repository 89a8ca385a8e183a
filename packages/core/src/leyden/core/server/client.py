"""Python interface of a server of runs: `LightningClient` submits runs, and `RunHandle` follows and changes one."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.errors import LeydenError, UsageError
from leyden.core.server.budget import read_size
from leyden.core.server.connection import Connection, run_path
from leyden.core.server.messages import MOST_WAIT, AttachAddress, News, Resumption, Submission, VersionNotice
from leyden.core.server.status import RunStatus
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.trainer import TaskRows, Trainer, task_rows

PATIENCE = 600.0
"""Time in seconds for which a client waits for a server that does not answer, because it may start again."""


class LightningClient:
    """Client of `leyden serve`.

    Args:
        url: Root URL of the server.
        token: The server's token; by default that in LEYDEN_SERVER_TOKEN.
        insecure: Whether the token may be sent over plain HTTP to another machine.
        patience: Seconds to wait for a server that does not answer.
    """

    def __init__(
        self, url: str, token: str | None = None, *, insecure: bool = False, patience: float = PATIENCE
    ) -> None:
        self.connection = Connection(url, token, insecure=insecure)
        self.insecure, self.patience = insecure, patience

    def submit(
        self,
        agent: str | None = None,
        train_dataset: TaskRows | None = None,
        val_dataset: TaskRows | None = None,
        reward: str | None = None,
        *,
        memory: int | str | None = None,
        cores: int | None = None,
        **settings: Any,
    ) -> "RunHandle":
        """Submit a run, as `Trainer(**settings).fit(agent, ...)` would begin it, and return its handle.

        Agent, reward, input and hooks are import strings, which the server reads in its project folder, as the policy.
        Raises UsageError for arguments that cannot work, and RunError for a name that is taken.
        """
        config, tasks, held_out = Trainer(**settings).planned(agent, train_dataset, val_dataset, reward)
        return self.submit_config(config, tasks, held_out, memory=memory, cores=cores)

    def submit_config(
        self,
        config: RunConfig,
        tasks: Sequence[Task],
        held_out: Mapping[str, Sequence[Task]] | None = None,
        *,
        memory: int | str | None = None,
        cores: int | None = None,
    ) -> "RunHandle":
        """Submit a run by its configuration and the rows of its tasks, and return its handle."""
        given = Submission(
            config=config,
            tasks=task_rows(tasks),
            held_out={name: task_rows(rows) for name, rows in (held_out or {}).items()},
            memory=_bytes(memory),
            cores=cores,
        )
        return self.run(self.connection.send("POST", "/runs", given, RunStatus).name)

    def runs(self) -> list[RunStatus]:
        """Return the status of every run, in the order of the queue."""
        return msgspec.convert(self.connection.get("/runs", dict[str, Any])["runs"], list[RunStatus])

    def run(self, name: str) -> "RunHandle":
        """Return the handle of a run, which need not exist."""
        return RunHandle(self, name)

    def only_run(self) -> "RunHandle":
        """Return the handle of the only run that has not ended. Raises UsageError if there is none, or several."""
        names = [status.name for status in self.runs() if not status.has_ended]
        if len(names) != 1:
            there = f"{len(names)} runs: {', '.join(names)}" if names else "no run that is queued or running"
            raise UsageError(f"the server at {self.connection.url} has {there}; name one with --run")
        return self.run(names[0])


class RunHandle:
    """One run of a server."""

    def __init__(self, client: LightningClient, name: str) -> None:
        self._client, self.name = client, name

    def __repr__(self) -> str:
        return f"RunHandle({self.name!r} at {self._client.connection.url})"

    def status(self) -> RunStatus:
        """Return the status of the run; raises RunError if the server has no such run."""
        return self._client.connection.get(run_path(self.name), RunStatus)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of every step, as in the run's `metrics.jsonl`."""
        return self._client.connection.get(run_path(self.name, "/metrics"), list[dict[str, Any]])

    def versions(self) -> list[VersionNotice]:
        """Return the versions of the run's policy and prompts, the oldest first."""
        return self._news({"version": -1}).versions

    def output_size(self) -> int:
        """Return the number of bytes that the run's processes have printed so far."""
        return self._news({"offset": 1 << 53}).offset

    def watch(
        self,
        *,
        output: int | None = None,
        step: int | None = None,
        version: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[News]:
        """Yield what is new of the run until it has ended, each as soon as the server has it.

        Of the output after `output`, the steps after `step`, and the versions after `version`; of those that are None,
        nothing. A server that does not answer is waited for. Raises LeydenError if the run has not ended after
        `timeout` seconds.
        """
        state, give_up = None, None if timeout is None else time.monotonic() + timeout
        while True:
            left = MOST_WAIT if give_up is None else max(0.0, min(MOST_WAIT, give_up - time.monotonic()))
            query = {"offset": output, "step": step, "version": version, "state": state, "wait": f"{left:.1f}"}
            news = self._news(query, patience=self._client.patience if give_up is None else left)
            is_new = bool(news.output or news.metrics or news.versions) or news.status.state != state
            state = news.status.state
            output = None if output is None else news.offset
            if step is not None:  # a resumed or rolled back run takes earlier steps again
                step = max([min(step, news.status.step), *(int(line.get("step", 0)) for line in news.metrics)])
            if version is not None:
                newest = -1 if news.status.version is None else news.status.version
                version = max([min(version, newest), *(one.version for one in news.versions)])
            if is_new:
                yield news
            if news.status.has_ended and not (news.output or news.metrics or news.versions):
                return
            if give_up is not None and time.monotonic() >= give_up:
                raise LeydenError(f"{news.status.line()}; it has not ended within {timeout:g} s")

    def wait(
        self,
        *,
        timeout: float | None = None,
        on_version: Callable[[VersionNotice], None] | None = None,
        since: int | None = None,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ) -> RunStatus:
        """Wait until the run has ended, and return its status.

        `on_version` gets each new version of policy and prompts: those after version `since`, where -1 means all, by
        default those from now on. `on_step` gets the metrics of each step from now on.
        """
        status = self.status()
        newest = since if since is not None else -1 if status.version is None else status.version
        following = self.watch(
            step=None if on_step is None else status.step,
            version=None if on_version is None else newest,
            timeout=timeout,
        )
        for news in following:
            status = news.status
            for line in news.metrics if on_step is not None else ():
                on_step(line)  # type: ignore[misc]
            for version in news.versions if on_version is not None else ():
                on_version(version)  # type: ignore[misc]
        return status

    def stop(self, *, wait: bool = True, timeout: float = 300.0) -> RunStatus:
        """Stop the run; it can be resumed. With `wait`, return when its process has ended."""
        status = self._send("stop", RunStatus)
        return self.wait(timeout=timeout) if wait and not status.has_ended else status

    def resume(
        self,
        *,
        steps: int | None = None,
        device: str | None = None,
        settings: Mapping[str, Any] | None = None,
        memory: int | str | None = None,
        cores: int | None = None,
    ) -> RunStatus:
        """Put the run into the queue again, with what changes. Raises RunError for a run that is queued or running."""
        given = Resumption(
            steps=steps, device=device, settings=dict(settings or {}), memory=_bytes(memory), cores=cores
        )
        return self._send("resume", RunStatus, given)

    def rollback(self, version: int | str) -> dict[str, Any]:
        """Return the run to an earlier version, from which `resume` goes on. A run that trains is stopped first."""
        if not self.status().has_ended:
            self.stop()
        return self._send("rollback", dict[str, Any], {"version": version})

    def remove(self) -> None:
        """Delete the run and its folder on the server."""
        self._client.connection.send("DELETE", run_path(self.name), None, type(None))

    def address(self, *, patience: float = 0.0) -> AttachAddress:
        """Return the run's own address, and the token with which agents attach to it."""
        return self._client.connection.get(run_path(self.name, "/address"), AttachAddress, patience=patience)

    def work(
        self,
        agent: str | None = None,
        *,
        reward: str | None = None,
        workers: int = 1,
        max_workers: int | None = None,
        concurrency: int | None = None,
        trust_server: bool = False,
        on_message: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run workers on this machine until the run has ended, as `leyden run` does; `agent` is an import string.

        Raises UsageError for an agent that does not fit the run, and NoServer if the server does not answer for the
        client's `patience`.
        """
        from leyden.core.server.attach import Attachment, attach_until_stopped
        from leyden.core.trainer.event_loop import run_loop

        attachment = Attachment(
            address=self.address,
            insecure=self._client.insecure,
            patience=self._client.patience,
            settings={
                "agent": agent,
                "reward": reward,
                "workers": workers,
                "max_workers": max_workers,
                "concurrency": concurrency,
                "trust_server": trust_server,
            },
        )
        run_loop(attach_until_stopped(attachment, on_message))

    def _send(self, what: str, kind: Any, body: object = None) -> Any:
        return self._client.connection.send("POST", run_path(self.name, f"/{what}"), body or {}, kind)

    def _news(self, query: Mapping[str, object], *, patience: float = 0.0) -> News:
        return self._client.connection.get(run_path(self.name, "/news"), News, query, patience=patience)


def _bytes(memory: int | str | None) -> int | None:
    return read_size(memory, "memory") if isinstance(memory, str) else memory
