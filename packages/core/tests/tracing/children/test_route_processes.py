import json
import multiprocessing
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from leyden.core.data import semconv
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.wire import routing

SCRIPT = """
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkProcess, SpawnProcess

import httpx

METHOD, PROVIDER, GATEWAY = sys.argv[1:]


def call(_=None):
    try:
        return httpx.post(f"{PROVIDER}/v1/chat/completions", json={"model": "big"}).status_code
    except httpx.ConnectError as error:
        return str(error)


def put(queue):
    queue.put(call())


class Own({"spawn": SpawnProcess, "fork": ForkProcess}[METHOD]):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def run(self):
        put(self.queue)


def outcomes(processes):
    found = []
    for make in (processes.Process, Own):
        queue = processes.SimpleQueue()
        process = make(target=put, args=(queue,)) if make is processes.Process else make(queue)
        process.start()
        found.append(queue.get())
        process.join()
        assert "run" not in vars(process)
    return found


if __name__ == "__main__":
    from leyden.core.tracing import context_propagation
    from leyden.core.tracing.wire import routing
    from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, set_caller

    def attempt(name):
        return OpenAttempt(rollout_id="r", attempt_id=name, token=name, gateway_url=GATEWAY, trace_id="ab" * 16)

    context_propagation.install()
    routing.install(fail_closed=True)
    processes = multiprocessing.get_context(METHOD)
    found = {"without": outcomes(processes)}
    with open_attempt(attempt("a")):
        set_caller(Caller(agent="solver"))
        found["process"] = outcomes(processes)
        pool, executor = processes.Pool(1), ProcessPoolExecutor(1, mp_context=processes)
        found["pools"] = [pool.apply(call), executor.submit(call).result()]
        with open_attempt(attempt("b")):
            found["other"] = [*pool.map(call, [1]), *executor.map(call, [1])]
        with open_attempt(attempt("c")):
            found["imap"] = list(pool.imap(call, [1]))
    found["without"] += [pool.apply(call), executor.submit(call).result()]
    pool.terminate()
    executor.shutdown()
    routing.uninstall()
    context_propagation.uninstall()
    print(json.dumps(found))
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods()[:2])
def test_a_child_process_works_for_the_attempt_that_asks_or_for_nobody(
    method: str, tmp_path: Path, gateway: Endpoint, provider: Endpoint
) -> None:
    (tmp_path / "agent.py").write_text(SCRIPT)
    command = [sys.executable, "agent.py", method, provider.url, gateway.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ["no attempt is open" in str(outcome) for outcome in found.pop("without")] == [True] * 4
    assert found == {"process": [200, 200], "pools": [200, 200], "other": [200, 200], "imap": [200]}
    assert not provider.seen
    headers = [call["headers"] for call in gateway.seen]
    assert [header[semconv.HEADER_ATTEMPT] for header in headers] == ["a"] * 4 + ["b"] * 2 + ["c"]
    assert [header.get(semconv.HEADER_AGENT) for header in headers] == ["solver"] * 4 + [None] * 3


def test_uninstall_undoes_install_exactly() -> None:
    before = BaseProcess.__dict__["start"]
    routing.install()
    assert BaseProcess.__dict__["start"] is not before
    routing.uninstall()
    assert BaseProcess.__dict__["start"] is before
