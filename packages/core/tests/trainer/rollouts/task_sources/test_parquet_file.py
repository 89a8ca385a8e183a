import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.tasks import load_tasks, place_of

pa: Any = pyarrow
pq: Any = parquet


def written(folder: Path, columns: Any, **how: Any) -> Path:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, folder / "t.parquet", **how)
    return folder / "t.parquet"


def test_each_row_is_a_task_with_the_values_of_its_columns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "a", "n": 1, "x": 0.5, "yes": True, "list": [1, 2], "deep": {"k": ["v"]}, "none": None},
        {"question": "ü", "n": 2**63 - 1, "x": -1.0, "yes": None, "list": [], "deep": {"k": None}, "none": None},
    ]
    assert load_tasks(written(tmp_path, pa.Table.from_pylist(rows))) == rows


def test_dates_times_and_decimals_become_texts(tmp_path: Path) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 120000, tzinfo=UTC)
    columns = {
        "date": pa.array([date(2024, 5, 6)]),
        "zoned": pa.array([moment], pa.timestamp("ns", "UTC")),
        "plain": pa.array([moment.replace(tzinfo=None)], pa.timestamp("ms")),
        "time": pa.array([time(7, 8, 9)], pa.time64("ns")),
        "for": pa.array([timedelta(seconds=90)], pa.duration("ns")),
        "price": pa.array([Decimal("12.50")], pa.decimal128(6, 2)),
    }
    assert load_tasks(written(tmp_path, columns)) == [
        {
            "date": "2024-05-06",
            "zoned": "2024-05-06T07:08:09.120000Z",
            "plain": "2024-05-06T07:08:09.120000",
            "time": "07:08:09",
            "for": "PT90S",
            "price": "12.50",
        }
    ]


def test_dictionaries_maps_fixed_lists_and_half_floats(tmp_path: Path) -> None:
    columns = {
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "map": pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        "half": pa.array([0.5, 1.0, None], pa.float16()),
    }
    assert load_tasks(written(tmp_path, columns)) == [
        {"word": "a", "map": {"x": 1}, "pair": [1, 2], "half": 0.5},
        {"word": "b", "map": {}, "pair": [3, 4], "half": 1.0},
        {"word": "a", "map": None, "pair": [5, 6], "half": None},
    ]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"x": [1.0, float("nan")]}, "row 2: task.x: nan is no number that JSON can hold: write it as text, or as"),
        ({"x": [[0.0], [1.0, float("inf")]]}, "row 2: task.x[1]: inf is no number that JSON can hold"),
        ({"image": [b"\x89PNG"]}, "the column 'image' has values of the type binary, which JSON cannot hold"),
        ({"a": [{"bytes": b"x"}]}, "the column 'a.bytes' has values of the type binary"),
        (
            {"t": pa.array([0, 1], pa.timestamp("ns"))},
            "row 2: Casting from timestamp[ns] to timestamp[us] would lose data: 1; write the value as text",
        ),
        ({"m": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8()))}, "row 1: "),
        ({"m": pa.array([[(1, 1)]], pa.map_(pa.int8(), pa.int8()))}, "the column 'm' has values of the type map"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "two columns are called 'a'"),
        (pa.table({"a": pa.array([], pa.string())}), "has no rows"),
    ],
)
def test_what_json_cannot_hold_gives_one_line_with_row_or_column(tmp_path: Path, columns: Any, says: str) -> None:
    with pytest.raises(TaskError) as error:
        load_tasks(written(tmp_path, columns))
    assert says in str(error.value)
    assert str(tmp_path / "t.parquet") in str(error.value)
    assert "\n" not in str(error.value)


def test_the_row_is_counted_over_all_batches(tmp_path: Path) -> None:
    numbers = [float(n) for n in range(2500)]
    file = written(tmp_path, {"x": [*numbers, float("nan"), 1.0]}, row_group_size=700)
    with pytest.raises(TaskError, match="row 2501: "):
        load_tasks(file)
    assert load_tasks(file, 2400) == [{"x": number} for number in numbers[:2400]]
    assert place_of(str(file), [{"x": 1}] * 3, 2) == f"{file}, row 3"


def test_other_files_folders_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text('{"a": 1}\n')
    with pytest.raises(TaskError, match=r"t\.parquet cannot be read as Parquet: "):
        load_tasks(tmp_path / "t.parquet")
    whole = written(tmp_path, {"a": ["text " * 50] * 100}).read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[:200])
    with pytest.raises(TaskError, match=r"t\.parquet cannot be read as Parquet: "):
        load_tasks(tmp_path / "t.parquet")
    with pytest.raises(TaskError, match=r"none\.parquet does not exist"):
        load_tasks(tmp_path / "none.parquet")
    with pytest.raises(TaskError, match="is a folder; give a file, or hf:"):
        (tmp_path / "folder.parquet").mkdir()
        load_tasks(tmp_path / "folder.parquet")


def test_a_parquet_file_under_another_name_is_to_be_renamed(tmp_path: Path) -> None:
    written(tmp_path, {"a": [1]}).rename(tmp_path / "t.data")
    with pytest.raises(TaskError, match=r"line 1: .*UTF-8|\.parquet"):
        load_tasks(tmp_path / "t.data")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, {"a": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TaskError, match=r"needs pyarrow: pip install 'leyden-core\[datasets\]'"):
        load_tasks(file)
