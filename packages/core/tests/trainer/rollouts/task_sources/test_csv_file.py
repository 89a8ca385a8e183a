import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.tasks import load_tasks, task_examples


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


def test_every_value_is_a_text_under_the_name_in_the_header(tmp_path: Path) -> None:
    file = written(tmp_path, "question,answer,hint\nWhat is 2 + 2?,4,\nAgent?,007,nan\n")
    assert load_tasks(file) == [
        {"question": "What is 2 + 2?", "answer": "4", "hint": ""},
        {"question": "Agent?", "answer": "007", "hint": "nan"},
    ]


def test_quotes_a_byte_order_mark_and_the_line_ends_of_windows(tmp_path: Path) -> None:
    file = written(tmp_path, '\ufeffquestion,answer\r\n"one, ""two""\nthree",x\r\n\r\n5" pipe,y\r\n', "t.CSV")
    assert load_tasks(file) == [
        {"question": 'one, "two"\nthree', "answer": "x"},
        {"question": '5" pipe', "answer": "y"},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no rows"),
        ("question,answer\n", "has no rows"),
        ("a,b,a\n1,2,3\n", "line 1: the header names 'a' twice"),
        ("a,,c\n1,2,3\n", "line 1: column 2 has no name"),
        ('a,b\n"x\ny",1\n1,2,3\n', "line 4: 3 values, but the header has 2; quote a value that contains a comma"),
        ("a,b\n1,2\n\n3\n", "line 4: 1 value, but the header has 2"),
        ('a,b\n1,2\n3,"four\n', "line 3: not CSV (unexpected end of data); close every quote"),
        ('a,b\n"x"y,2\n', "line 2: not CSV (',' expected after '\"')"),
        ("question;answer\nx;1\n", "line 1: the columns are separated by semicolons; save the file with commas"),
        ("question\tanswer\n", "line 1: the columns are separated by tabs"),
    ],
)
def test_a_malformed_file_gives_one_line_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TaskError) as error:
        load_tasks(written(tmp_path, text))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_another_encoding_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a\nf\xfcr\n".encode("latin-1"))
    with pytest.raises(TaskError, match="line 2: not UTF-8; save the file as UTF-8"):
        load_tasks(tmp_path / "t.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TaskError, match="is a folder; give a file, or hf:"):
        load_tasks(tmp_path / "folder.csv")
    with pytest.raises(TaskError, match=r"none\.csv does not exist"):
        load_tasks(tmp_path / "none.csv")


def test_only_the_rows_that_are_taken_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, "a,b\n1,2\n3,4\n5\n")
    assert load_tasks(file, 2) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_a_long_value_is_kept_and_the_limit_of_the_module_afterwards_too(tmp_path: Path) -> None:
    usual, long = csv.field_size_limit(), "x" * 300_000
    assert load_tasks(written(tmp_path, f"a\n{long}\n")) == [{"a": long}]
    assert csv.field_size_limit() == usual


def test_a_task_is_placed_by_the_line_on_which_its_record_begins(tmp_path: Path) -> None:
    file = written(tmp_path, 'a\n"one\ntwo"\n\nthree\n')
    tasks = [*load_tasks(file)]
    tasks[1] = {"b": "another form"}
    assert [one.place for one in task_examples([(str(file), tasks)])] == [f"{file}, line 2", f"{file}, line 5"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))), min_size=1))
def test_what_the_standard_library_writes_is_read_unchanged(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    file = tmp_path / "t.csv"
    with file.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(("a", "b"))
        writer.writerows(rows)
    assert load_tasks(file) == [{"a": a, "b": b} for a, b in rows]
