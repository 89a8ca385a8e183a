"""Whether this process runs one attempt and no other, for adapters that would otherwise copy or refuse an agent."""

_alone = False


def begin() -> None:
    """Say so, in a process that was forked for one attempt."""
    global _alone
    _alone = True


def is_alone() -> bool:
    """Whether nothing in this process is shared with another attempt."""
    return _alone
