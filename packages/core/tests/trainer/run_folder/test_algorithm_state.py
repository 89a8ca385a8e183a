from pathlib import Path

import pytest

from leyden.core.trainer.run_folder.algorithm_state import AlgorithmState
from leyden.core.trainer.run_folder.folder import RunFolder


def test_the_state_saved_last_is_that_of_the_step(tmp_path: Path) -> None:
    state = AlgorithmState(RunFolder(tmp_path))
    assert state.restore(0, "", None) is None
    assert state.save(0, "", {"beam": (1, 2), 3: "three"}) == {"beam": [1, 2], "3": "three"}
    state.save(0, "", "later")
    assert AlgorithmState(RunFolder(tmp_path)).restore(0, "", None) == "later"


def test_after_a_crash_between_publishing_and_the_checkpoint_the_step_before_has_its_state(tmp_path: Path) -> None:
    state = AlgorithmState(RunFolder(tmp_path))
    for step in range(4):
        state.save(step, "", f"in step {step}")
    assert state.restore(3, "", "checkpoint") == "in step 3"
    assert state.restore(2, "", "checkpoint") == "in step 2"
    assert state.restore(1, "", "checkpoint") == "checkpoint"


def test_after_a_rollback_the_state_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    state = AlgorithmState(RunFolder(tmp_path))
    state.save(2, "", "set aside")
    assert state.restore(2, "r1-", "checkpoint") == "checkpoint"
    state.save(2, "r1-", "new")
    assert state.restore(2, "r1-", "checkpoint") == "new"


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_a_state_that_json_cannot_hold_is_refused_and_changes_nothing(tmp_path: Path, value: object) -> None:
    state = AlgorithmState(RunFolder(tmp_path))
    state.save(0, "", "kept")
    with pytest.raises((TypeError, ValueError)):
        state.save(0, "", value)
    assert state.restore(0, "", None) == "kept"
