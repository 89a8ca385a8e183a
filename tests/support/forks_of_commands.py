"""Starts, when it is imported, the template of the workers and learners that `leyden` commands start; see `forks`.

Imported by the server that forks the commands off, as one of its libraries: the template ends with that server.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import forks

LOADED = (
    *(
        "leyden.core.runner.workers.worker",
        "leyden.core.trainer.agents.learner_process",
        "leyden.core.engine.embedded.engine",
    ),
    *("leyden.core.policy.update.updater", "langchain_openai", "langchain.agents", "langgraph.graph"),
)

_folder = Path(tempfile.mkdtemp(prefix="leyden-forks-"))
_template = subprocess.Popen([sys.executable, forks.__file__, _folder / "socket", *LOADED], stdin=subprocess.PIPE)
PYTHON = forks.python_of(_folder / "socket", _folder / "python")
"""What a command starts its workers with."""
