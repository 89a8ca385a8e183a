"""How fast what agents print is masked, and what the process that does it takes.

    python benchmarks/masking.py --json masking.json

A child writes lines of each kind to a pipe of `MaskedLog`, which ends in a file. For each kind: MB a second, from the
first byte to the last line in the file; and the resident MiB of the process at its end. Medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from leyden.core.runner.workers.masked_log import MaskedLog

LINES = {
    "http": "2025-11-25 12:00:00 INFO httpx: HTTP Request: POST https://api.openai.com/v1/chat/completions 200 OK",
    "progress": "step 12 ok",
    "words": "max_tokens is 512, and the token count of the answer with its secret ingredient is below it",
    "key": "key ghp_0123456789abcdefABCDEF0123456789 was used",
}
WRITES = """
import os, sys
block, count = (sys.argv[1] + chr(10)).encode() * 100, int(sys.argv[2])
for _ in range(count): os.write(1, block)
"""


async def measure(line: str, size: int, path: Path) -> dict[str, float]:
    """Have `size` bytes of lines printed, and wait until they are in the file."""
    log = MaskedLog(str(path), list)
    await log.start()
    await _printed(log, line, 1)
    while not path.stat().st_size:  # the process is up
        await asyncio.sleep(0.01)
    began = time.perf_counter()
    await _printed(log, line, size // (100 * (len(line) + 1)))
    process: Any = vars(log)["_process"]
    resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    await log.stop()
    return {"mb_per_s": size / 1e6 / (time.perf_counter() - began), "resident_mib": resident / 2**20}


async def _printed(log: MaskedLog, line: str, count: int) -> None:
    output = log.open_pipe()
    child = subprocess.Popen([sys.executable, "-S", "-c", WRITES, line, str(count)], stdout=output)
    os.close(output)
    await asyncio.to_thread(child.wait)


def main() -> None:
    """Measure every kind, and write medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=20.0)
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, line in LINES.items():
            rounds = [
                asyncio.run(measure(line, int(given.megabytes * 1e6), Path(folder) / f"{kind}{number}.log"))
                for number in range(given.rounds)
            ]
            found[kind] = {name: round(statistics.median(r[name] for r in rounds), 1) for name in rounds[0]}
    text = json.dumps(found, indent=2)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
