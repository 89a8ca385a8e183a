"""Who waits at a file is told when anybody rings there, and looks for himself where that cannot be."""

import asyncio
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from leyden.core.store.sql import file_notifier
from leyden.core.store.sql.file_notifier import FileListener
from leyden.core.store.sql.store import SqlStore

SECONDS = 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")

QUEUE_ONE = """
import asyncio, sys
from leyden.core.store.open import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    await store.enqueue_rollout(1)
    await store.close()

asyncio.run(main())
"""


@linux
def test_every_ring_of_any_process_is_heard_and_writing_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    heard: queue.SimpleQueue[None] = queue.SimpleQueue()
    listener = FileListener(path, lambda: heard.put(None))
    with path.open("ab") as file:
        file.write(b"more")
    assert heard.empty()
    file_notifier.notify(path)
    heard.get(timeout=SECONDS)
    imports = "import sys; from pathlib import Path; from leyden.core.store.sql.file_notifier import notify"
    code = f"{imports}; notify(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    heard.get(timeout=SECONDS)
    assert path.read_bytes() == b"beforemore"
    listener.stop()
    file_notifier.notify(path)
    assert heard.empty()


def test_a_file_that_is_not_there_cannot_be_listened_at_and_may_be_rung_at(tmp_path: Path) -> None:
    file_notifier.notify(tmp_path / "nothing")
    with pytest.raises(OSError):
        FileListener(tmp_path / "nothing", lambda: None)


@linux
async def test_another_process_wakes_who_would_not_look_for_long(tmp_path: Path) -> None:
    here = await SqlStore.open(tmp_path / "s.db", recheck=600)
    waiter = asyncio.create_task(here.dequeue_many_rollouts(timeout=600))
    command = [sys.executable, "-c", QUEUE_ONE, f"sqlite:///{tmp_path}/s.db"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        assert await asyncio.to_thread(other.stdout.readline) == b"open\n"
        assert not waiter.done()
        other.stdin.write(b"go\n")
        other.stdin.flush()
        async with asyncio.timeout(60):
            assert len(await waiter) == 1
    await here.close()


async def test_where_nothing_can_be_heard_who_waits_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(path: Path) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(file_notifier, "_inotify_of", none_left)
    here, there = await SqlStore.open(tmp_path / "s.db", recheck=0.05), await SqlStore.open(tmp_path / "s.db")
    waiter = asyncio.create_task(here.dequeue_many_rollouts(timeout=30))
    await asyncio.sleep(0)
    queued = await there.enqueue_rollout(1)
    async with asyncio.timeout(20):
        assert [claim.rollout_id for claim in await waiter] == [queued.rollout_id]
    await here.close()
    await there.close()
