"""The reward function of the zoo: writes down what the agent returned and kept, and rewards every other rollout."""

import os
from typing import Any

from zoo_harness.observing import dump, plain, state_of

FOLDER, STATE, PATH, REFERENCE = "ZOO_FOLDER", "ZOO_STATE", "ZOO_PATH", "ZOO_REFERENCE"


def score(task: Any, result: Any) -> float:
    """Return 1 for every other rollout of a task, so that each group has something to compare."""
    environment = os.environ
    state = state_of(environment.get(STATE), environment[PATH], environment[REFERENCE])
    return float(dump(environment[FOLDER], task, {"result": plain(result), "state": state}) % 2)
