from leyden.core.store.http.worker_presence import PRESENT_SECONDS, WorkerPresence


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_worker_is_present_until_its_heartbeats_stop() -> None:
    clock = Clock()
    presence = WorkerPresence(clock)
    presence.heartbeat("a", {"running": 1, "concurrency": 8})
    clock.now += 10
    presence.heartbeat("b", {"concurrency": 4})
    assert [worker.concurrency for worker in presence.claiming()] == [8, 4]
    clock.now += PRESENT_SECONDS - 10 + 1
    assert [worker.concurrency for worker in presence.claiming()] == [4]
    presence.heartbeat("a", {"concurrency": 8})
    assert len(presence.claiming()) == 2
    clock.now += PRESENT_SECONDS + 1
    assert presence.claiming() == []


def test_a_worker_that_is_drained_claims_nothing() -> None:
    presence = WorkerPresence()
    presence.heartbeat("a", {"concurrency": 8, "draining": True})
    assert presence.claiming() == []


def test_statistics_of_another_kind_are_no_concurrency() -> None:
    presence = WorkerPresence()
    for name, value in (("a", "8"), ("b", -1), ("c", None), ("d", 2.5)):
        presence.heartbeat(name, {"concurrency": value})
    assert [worker.concurrency for worker in presence.claiming()] == [0, 0, 0, 0]
