"""One measurement in a process of its own: `python -m stores.worker WHAT BACKEND OPTIONS`; prints rows as JSON."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from stores.ingest import ingest
from stores.room import room
from stores.steady import steady
from stores.waking import wake
from stores.work import query, rollouts


def measure(what: str, backend: str, folder: Path, options: dict[str, int]) -> list[dict[str, Any]]:
    """Measure one thing at one backend; KeyError for what is not measured."""
    if what == "ingest":
        return ingest(backend, folder, options["spans"], options["round"])
    measurement, size = {
        "rollouts": (rollouts, options["rollouts"]),
        "waking": (wake, options["wakes"]),
        "query": (query, options["query_rollouts"]),
        "room": (room, options["spans"]),
        "steady": (steady, options["steady_spans"]),
    }[what]
    return measurement(backend, folder, size)


if __name__ == "__main__":
    what, backend, options = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as name:
        print(json.dumps(measure(what, backend, Path(name), json.loads(options))))
