"""Learner process of `Trainer.fit` with a live agent: runs learning, gateway and engine; the parent runs the agent.

It is started as `python -m` of this module with the arguments `WORK FOLDER DESCRIPTOR DISPLAY PARENT`. `WORK` is
`train` or `check`. `PARENT` is the id of the starting process; an argument, because that process may already be gone
when this one could look it up. The process sends messages through the pipe `DESCRIPTOR`: the address for the agents,
`{"finished": true}` when they may stop, then `{"done": true}` or `{"error": ...}`.
"""

import sys
from pathlib import Path

from leyden.core import errors
from leyden.core.policy.repeatable import repeatable
from leyden.core.trainer.agents.local import parent_agents, send_to_parent
from leyden.core.trainer.event_loop import Terminated, ended_by_sigterm, run_loop
from leyden.core.trainer.monitoring.display import make_display
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_state import end_recorded
from leyden.core.trainer.session import check, train

INTERRUPTED = 130
TERMINATED = 143


def main(arguments: list[str]) -> int:
    """Run one session, and return the exit code.

    The code is 0, 1 after an error was sent through the pipe, 130 after Ctrl-C, or 143 after SIGTERM.
    """
    work = {"train": train, "check": check}[arguments[0]]
    path, descriptor, shown, parent = Path(arguments[1]), int(arguments[2]), arguments[3], int(arguments[4])
    folder, config = RunFolder.open(path.parent, path.name)
    resources = folder.resources()
    display = make_display(quiet=shown == "quiet", json=shown == "json")
    try:
        with folder.locked(), end_recorded(folder), repeatable(config.deterministic):
            session = work(folder, config, parent_agents(descriptor, parent), display, resources)
            run_loop(ended_by_sigterm(session))
    except errors.LeydenError as error:
        send_to_parent(descriptor, {"error": {"class": type(error).__name__, "message": str(error)}})
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    send_to_parent(descriptor, {"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
