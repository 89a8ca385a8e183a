"""A journal that outlives whoever writes it: one JSON object a line, on the disk before `note` returns."""

import json
import os
from pathlib import Path
from typing import Any


def note(path: str | Path, **event: Any) -> None:
    """Add a line; any number of processes may write to one journal."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, b"\n" + json.dumps(event).encode() + b"\n")  # a line of its own also after a torn one
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """Everything that was noted, in order; without the lines whose writers were killed in the middle of them."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line and not (line.startswith(b"{") and not line.endswith(b"}"))]
