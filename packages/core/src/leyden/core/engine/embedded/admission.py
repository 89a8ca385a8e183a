"""Admission control: decides when waiting calls begin to be decoded.

For a small model, a prefill or a step costs nearly the same for one sequence as for eight. An engine that begins each
call at once is always busy with two or three, and takes processor time from the agents that make the next ones. Calls
therefore wait for each other until there are as many as there recently were at once, but only for a short time. A
single call does not wait for others.
"""

AVERAGE_WEIGHT = 0.25
"""Weight of the newest arrival in the average; also by how much the number of calls may fall short of the average."""


class Admission:
    """Admission control of one queue. All times are in seconds, of one clock.

    Calls wait at most `idle` seconds if nothing is being decoded, and at most `longest` if more are expected.
    """

    def __init__(self, *, idle: float, longest: float) -> None:
        self._idle, self._longest = idle, longest
        self._average_in_flight = 1.0
        """Recent number of calls that wait or are decoded: a moving average over arrivals."""
        self._waiting_since: float | None = None

    def arrived(self, now: float, in_flight: int) -> None:
        """Record a new waiting call; `in_flight` counts all calls that wait or are decoded, including this one."""
        self._average_in_flight += AVERAGE_WEIGHT * (in_flight - self._average_in_flight)
        if self._waiting_since is None:
            self._waiting_since = now

    def began(self) -> None:
        """Record that calls have begun; calls left over begin as soon as there is room, without further waiting."""
        self._waiting_since = None

    def remaining_wait(self, now: float, *, waiting: int, room: int, idle: bool) -> float:
        """Return how many seconds the `waiting` calls should still wait; 0: begin as many as there is `room` for."""
        if self._waiting_since is None or waiting >= room:
            return 0.0
        expected = waiting < self._average_in_flight - AVERAGE_WEIGHT
        wait = self._longest if expected else self._idle if idle else 0.0
        return max(0.0, self._waiting_since + wait - now)
