"""`Admission`: when calls that have come begin to be decoded. Knows nothing of models, threads or what a call is.

To begin, and to take a step, cost a small model nearly the same for one sequence as for eight. Whoever begins each
call as it comes is always busy with two or three, and takes the processor from the agents that make the next ones. So
calls wait for each other until there are as many as there lately were at once, but never for long; one that is alone
does not wait for others.
"""

SHARE = 0.25
"""Weight of the newest arrival in the average; and by how much that average may be missed."""


class Admission:
    """Of one queue. All times are in seconds, by one clock.

    Calls wait for `idle` seconds at most where nothing is being decoded, and for `longest` where others are expected.
    """

    def __init__(self, *, idle: float, longest: float) -> None:
        self._idle, self._longest = idle, longest
        self._at_once = 1.0
        """How many calls there lately were, waiting or being decoded: a moving average over arrivals."""
        self._since: float | None = None

    def arrived(self, now: float, in_flight: int) -> None:
        """Note a call that has come to wait; `in_flight` counts it, the others that wait, and those being decoded."""
        self._at_once += SHARE * (in_flight - self._at_once)
        if self._since is None:
            self._since = now

    def began(self) -> None:
        """Note that calls have begun; any that found no room have waited, and begin as soon as there is some."""
        self._since = None

    def patience(self, now: float, *, waiting: int, room: int, idle: bool) -> float:
        """For how long the `waiting` should still wait; 0: now as many begin as there is `room` for."""
        if self._since is None or waiting >= room:
            return 0.0
        expected = waiting < self._at_once - SHARE
        wait = self._longest if expected else self._idle if idle else 0.0
        return max(0.0, self._since + wait - now)
