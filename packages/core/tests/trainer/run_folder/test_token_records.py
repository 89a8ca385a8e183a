"""The files of a run with what its steps computed for every trained token."""

import logging
from pathlib import Path

import pytest

from leyden.core.errors import RunError
from leyden.core.policy.update.token_record import PolicyTokens
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.token_records import TokenRecords

RECORD = {"policy": PolicyTokens(loss=0.5, optimizer_steps=1, calls=[])}


def steps(records: TokenRecords) -> list[str]:
    return [path.name for path in records.after(0)]


def test_the_record_of_a_step_is_found_by_its_number(tmp_path: Path) -> None:
    records = TokenRecords(tmp_path)

    records.write(12, RECORD)

    assert records.read(12) == RECORD
    assert records.read(11) is None


def test_a_run_that_goes_on_from_an_earlier_step_forgets_the_later_ones(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, RunConfig(name="r", agent="a", policy="p"), [], {})
    for step in range(1, 5):
        folder.token_records.write(step, RECORD)

    folder.rewind_metrics(2)
    assert steps(folder.token_records) == ["step-00000001.msgpack.z", "step-00000002.msgpack.z"]

    folder.rewind_metrics(-1)
    assert steps(folder.token_records) == []


def test_a_damaged_record_is_one_clear_error(tmp_path: Path) -> None:
    records = TokenRecords(tmp_path)
    records.write(1, RECORD)
    records.path(1).write_bytes(b"half")

    with pytest.raises(RunError, match=r"step-00000001\.msgpack\.z: .* cannot be read"):
        records.read(1)


def test_a_record_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tokens").write_text("a file in the way")

    with caplog.at_level(logging.WARNING):
        TokenRecords(tmp_path).write(3, RECORD)

    assert "step 3 could not be recorded" in caplog.text
