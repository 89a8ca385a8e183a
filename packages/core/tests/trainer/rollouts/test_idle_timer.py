"""Seconds outside every block, by a clock that is set by hand."""

from leyden.core.trainer.rollouts.collector import IdleTimer


def test_only_the_time_outside_every_block_is_idle() -> None:
    now = [0.0]
    idle = IdleTimer(lambda: now[0])
    now[0] = 1.0
    assert idle.seconds == 1.0
    with idle.busy():
        now[0] = 3.0
        with idle.busy():
            now[0] = 7.0
        now[0] = 15.0
        assert idle.seconds == 1.0
    now[0] = 31.0
    assert idle.seconds == 17.0
