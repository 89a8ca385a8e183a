import asyncio
import gc
import signal
from typing import Any

import pytest

from leyden.core.runner.workers import process
from leyden.core.runner.workers.spec import WorkerSpec


def test_a_spec_shows_no_secrets() -> None:
    spec = WorkerSpec(agent="a:b", store_url="http://s", gateway_url="http://g", key="12ab", store_token="opensesame")
    assert "12ab" not in repr(spec)
    assert "opensesame" not in repr(spec)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 8])
def test_a_worker_whose_start_is_cancelled_is_gone_with_its_handles(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop that the trainer runs on, which names what it must close itself."""
    uvloop = pytest.importorskip("uvloop")
    begun: list[Any] = []
    whole = asyncio.create_subprocess_exec

    async def noted(*command: Any, **options: Any) -> Any:
        process = await whole(*command, **options)
        await asyncio.sleep(0.05)  # such as on a machine that is busy
        begun.append(process)
        return process

    async def cancelled() -> None:
        spec = WorkerSpec(agent="none:agent", store_url="http://nowhere", store_token="", gateway_url="", key="")
        starting = asyncio.create_task(process.WorkerProcess.start(spec))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    uvloop.run(cancelled())
    gc.collect()
    assert [process.returncode for process in begun] == [-signal.SIGKILL] * len(begun)
    assert len(begun) == (turns > 0), "a start that had not begun is not begun"
