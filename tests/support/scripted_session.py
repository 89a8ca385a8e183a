"""Stands in for `leyden train --resume`: a process that takes the steps of a run in its folder, and learns nothing.

The name of the run says what happens to it: `doomed` kills itself before its first step, `frail` does so once after its
first step, `hungry` takes 300 MiB of memory, and `broken` fails. `slow` takes half a second for each step.
"""

import os
import signal
import sys
import time
from pathlib import Path

from leyden.core.errors import TrainingError
from leyden.core.trainer.event_loop import Terminated
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_state import end_recorded

PROGRAM = (sys.executable, __file__)
JOURNAL = "journal.txt"
"""File beside the runs with a line for each step that a process took."""


def main(words: list[str]) -> None:
    name, runs = words[words.index("--resume") + 1], Path(words[words.index("--runs") + 1])
    folder = RunFolder(runs / name)
    steps = int(words[words.index("--steps") + 1]) if "--steps" in words else int(folder.written_config()["steps"])
    signal.signal(signal.SIGTERM, terminate)
    with folder.locked(), end_recorded(folder):
        folder.forget_session_end()
        say(f"session of {name} on cores {sorted(os.sched_getaffinity(0))}")
        begin(name, folder)
        for step in range(len(folder.metrics()) + 1, steps + 1):
            time.sleep(0.5 if name.startswith("slow") else 0.05)
            with (runs / JOURNAL).open("a") as journal:
                journal.write(f"{name} {step}\n")
            folder.append_metrics({"step": step, "reward": 0.25 * step})
            say(f"step {step}")
            if name.startswith("frail") and step == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        folder.write_report(RunReport(name=name, seed=0, steps=steps))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def begin(name: str, folder: RunFolder) -> None:
    if name.startswith("doomed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("broken"):
        raise TrainingError("this run is broken")
    if name.startswith("hungry"):
        filled = bytearray(b"x" * (300 << 20))
        time.sleep(60)
        say(str(len(filled)))


def terminate(number: int, frame: object) -> None:
    raise Terminated


if __name__ == "__main__":
    try:
        main(sys.argv)
    except TrainingError as error:
        sys.exit(f"leyden: {error}")
    except Terminated:
        sys.exit(143)
