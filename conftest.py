"""What holds for every test.

Hypothesis judges what is computed, not how fast a busy machine computes it, and draws by its seed alone. Agents that a
test loads are forgotten after it. The plugins, in `tests/support`, give tests their levels, limit the examples of the
fast ones, fail files that leave something behind, and print what was skipped.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from traces import OUR_OWN, TEMPORARY

pytest_plugins = [
    "examples",
    "few_authorities",
    "forked_tests",
    "http_clients",
    "leaks",
    "levels",
    "own_logs",
    "quick_workers",
    "same_process",
    "skips",
]

# Hypothesis' own defaults differ where CI is set: there, each property would draw the same examples, and all of them.
settings.register_profile(
    "leyden", settings(), deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("leyden")


# CrewAI would tell its maker of every run, wait for seconds where there is no answer, and take over signals.
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false")

# Each crew opens a database in a folder that is called after the current one. Several processes of a test run that make
# that database at once, the first time in a checkout, lock each other out: each has a folder of its own.
_crewai = tempfile.mkdtemp(prefix="leyden-crewai-")
os.environ["CREWAI_STORAGE_DIR"] = _crewai

# Hypothesis would draw constants of our modules, too: of those that happen to be loaded. A seed would draw something
# else in another order of tests, and each worker would parse hundreds of files.
CONSTANTS = "_get_local_constants"
assert hasattr(providers, CONSTANTS), "this version of Hypothesis finds the constants of modules otherwise"
setattr(providers, CONSTANTS, Constants)


def pytest_unconfigure() -> None:
    """Remove CrewAI's folder; a worker of a test run ends without Python's own cleanup."""
    shutil.rmtree(_crewai, ignore_errors=True)


@pytest.fixture(autouse=True)
def loaded_agents_are_forgotten() -> Generator[None]:
    """Loading an agent changes the process: its folder is on Python's path then, and its module is a loaded one."""
    path, count = list(sys.path), len(sys.modules)
    yield
    libraries = [folder for folder in sys.path if folder not in path and folder.startswith(sys.prefix)]
    sys.path[:] = [*libraries, *path]
    if len(sys.modules) == count:
        return
    temporary = os.environ.get(TEMPORARY, tempfile.gettempdir())
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None))
        if file.startswith(temporary) and not file.startswith(OUR_OWN):  # these may lie there, too
            del sys.modules[name]
