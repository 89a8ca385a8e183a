"""Flag for adapters: whether this process runs only one attempt, so that an agent need not be copied or refused."""

_alone = False


def begin() -> None:
    """Set the flag, in a process that was forked for one attempt."""
    global _alone
    _alone = True


def is_alone() -> bool:
    """Return whether nothing in this process is shared with another attempt."""
    return _alone
