import bz2
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.errors import TaskError
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.rollouts.tasks import batch, load_tasks, save_tasks, task_examples


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [{"question": "zwei\nZeilen"}, "plain text", {"n": [1, 2.5, None]}]
    save_tasks(rows, tmp_path / "t.jsonl")
    assert load_tasks(tmp_path / "t.jsonl") == rows


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_only_a_newline_ends_a_row(tmp_path: Path, inside: str) -> None:
    """Python's `str.splitlines` knows ten other ends of lines, which JSON allows in a text."""
    rows = [{"question": f"one{inside}two"}, "last"]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert load_tasks(tmp_path / "t.jsonl") == rows


def test_a_file_may_begin_with_a_byte_order_mark_and_have_ends_of_lines_of_windows(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n')
    assert load_tasks(tmp_path / "t.jsonl") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1}\n{"a": \n', r"line 2: not JSON \(column \d+: "),
        ('{"a": 1}\n\n[1, 2]\n', r"line 3: a task is a JSON object with at least one key, or a string that"),
        ("\n \n", "has no rows"),
        ('{"a": 1}\n{}\n', "line 2: a task is a JSON object with at least one key, or a string that is not empty"),
        ('[\n {"a": 1}\n]\n', "line 1: not JSON .* write one object a line, without a list around them"),
        (
            '{"a": [1, 18446744073709551616]}',
            r"line 1: task\.a\[1\]: a whole number of 65 bits is kept as text; agent and reward",
        ),
        ('{"a": "\\ud800"}', r"line 1: task\.a: half of a surrogate pair"),
        ('{"a": ' + "[" * 150 + "]" * 150 + "}", r"line 1: task\.a.* nested deeper than 100"),
        ('{"a": 1}\n{"a": {"b": 1, "b": 2}}\n', "line 2: the key 'b' occurs twice in one object"),
        ('{"a": 1}\n{"a": ' + "[" * 100_000 + "\n", "line 2: its lists and objects are nested too deeply"),
        ('{"a": 1}\n{"a": NaN}\n', "line 2: NaN is no number that JSON can hold"),
        ('{"a": [-Infinity]}\n', "line 1: -Infinity is no number that JSON can hold"),
        ('{"a": 1e400}\n', "line 1: 1e400 is no number that JSON can hold"),
        ("question,answer\nx,1\n", "line 1: not JSON .* write one JSON object a line, such as"),
        ('[{"a": 1}]\n', "line 1: a task is a JSON object .* write one object a line, without a list around them"),
        ("{'a': 1}\n", "line 1: not JSON .* write keys and texts in double quotes"),
        ('{"a": 1}\n{"a": ' + "9" * 5000 + "}\n", "line 2: a whole number of 5,000 digits: write it as text"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(TaskError, match=says):
        load_tasks(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("compress", "says"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")]
)
def test_a_compressed_file_is_to_be_decompressed(tmp_path: Path, compress: Callable[[bytes], bytes], says: str) -> None:
    (tmp_path / "t.jsonl.gz").write_bytes(compress(b'{"a": 1}\n'))
    with pytest.raises(TaskError, match=f"is compressed with {says}; decompress it first"):
        load_tasks(tmp_path / "t.jsonl.gz")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"a": "für"}\n', encoding=encoding)
    with pytest.raises(TaskError, match=r"line [12]: not UTF-8; save the file as UTF-8"):
        load_tasks(tmp_path / "t.jsonl")


def test_each_form_of_a_task_has_one_example_with_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"q": "a"}\n\n{"q": "b"}\n{"q": 3}\n"text"\n{"q": "c", "a": 1}\n')
    examples = task_examples([(str(file), load_tasks(file)), ("val_dataset", [{"q": "d"}, {"frage": "e"}])])
    assert [(one.place, one.task) for one in examples] == [
        (f"{file}, line 1", {"q": "a"}),
        (f"{file}, line 4", {"q": 3}),
        (f"{file}, line 5", "text"),
        (f"{file}, line 6", {"q": "c", "a": 1}),
        ("val_dataset, task 2", {"frage": "e"}),
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"none\.jsonl does not exist"):
        load_tasks(tmp_path / "none.jsonl")


def test_a_row_that_json_cannot_hold_is_named_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="task 2"):
        save_tasks([{"a": 1}, {"a": object()}], tmp_path / "t.jsonl")


NUMBERS = st.integers() | st.integers(2**63, 2**65) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.characters(categories=["Cs"]) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=4))
async def test_a_row_reaches_the_agent_as_it_was_given_or_is_refused(row: dict[str, Any]) -> None:
    store = MemoryStore()
    with TemporaryDirectory() as folder:
        file = Path(folder, "t.jsonl")
        try:
            save_tasks([row], file)
        except TaskError as refused:
            assert str(refused).startswith("task 1: task")
            return
        (read,) = load_tasks(file)
    started = await store.start_rollout(read)
    await store.close()
    assert started.input == msgspec.to_builtins(row)
    assert "leyden.reduced" not in started.metadata


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 5))
def test_each_time_through_takes_every_row_once(rows: int, size: int, seed: int) -> None:
    tasks = list(range(rows))
    taken = [row for index in range(rows) for row, _ in batch(tasks, index, size, seed)]
    assert len(taken) == rows * size
    assert Counter(taken) == dict.fromkeys(range(rows), size)


def test_the_order_follows_from_the_seed() -> None:
    tasks = list(range(50))
    assert batch(tasks, 1, 8, seed=3) == batch(tasks, 1, 8, seed=3)
    assert batch(tasks, 1, 8, seed=3) != batch(tasks, 1, 8, seed=4)
