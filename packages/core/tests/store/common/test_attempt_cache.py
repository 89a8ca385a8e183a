from typing import Any

from leyden.core.store.common.attempt_cache import RecentAttempts

KEY = ("ro", "ro-a1")
FOUND: Any = ("rollout", "attempt")


def test_what_was_found_is_remembered_for_a_moment() -> None:
    recent = RecentAttempts(60)
    recent.put(KEY, FOUND, recent.changes())
    assert recent.get(KEY) == FOUND
    assert recent.get(("ro", "ro-a2")) is None
    brief = RecentAttempts(0)
    brief.put(KEY, FOUND, brief.changes())
    assert brief.get(KEY) is None


def test_a_change_is_forgotten_and_so_is_a_look_that_began_before_it() -> None:
    recent = RecentAttempts(60)
    recent.put(KEY, FOUND, recent.changes())
    before = recent.changes()
    recent.forget(["another"])
    assert recent.get(KEY) == FOUND
    recent.forget(["ro"])
    assert recent.get(KEY) is None
    recent.put(KEY, FOUND, before)
    assert recent.get(KEY) is None
