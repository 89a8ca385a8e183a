"""Runs the library `datasets` on local datasets, without a network."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from leyden.core.cli.options import held_out_name, read_held_out
from leyden.core.errors import TaskError, UsageError
from leyden.core.trainer.rollouts.task_sources.hugging_face import DatasetName
from leyden.core.trainer.rollouts.tasks import load_tasks, place_of

pa: Any = pyarrow
pq: Any = parquet


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the hub out of reach, and the cache of the library in the test's folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of two splits."""
    made = tmp_path / "sums"
    made.mkdir()
    for split, count in (("train", 5), ("test", 2)):
        rows = [json.dumps({"question": f"{split} {n}", "answer": n}) for n in range(count)]
        (made / f"{split}.jsonl").write_text("\n".join(rows))
    return made


@pytest.fixture
def with_configs(tmp_path: Path) -> Path:
    """A dataset of two configs, each with one split."""
    made = tmp_path / "several"
    made.mkdir()
    card = "".join(f"- config_name: {name}\n  data_files: {name}.parquet\n" for name in ("plain", "socratic"))
    (made / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    for name in ("plain", "socratic"):
        pq.write_table(pa.table({"question": [name]}), made / f"{name}.parquet")
    return made


def test_the_parts_of_a_name() -> None:
    assert DatasetName.parse("hf:openai/gsm8k") == ("openai/gsm8k", None, None)
    assert DatasetName.parse("hf:openai/gsm8k:main:test") == ("openai/gsm8k", "main", "test")
    assert DatasetName.parse("hf:a/b:train[:100]") == ("a/b", None, "train[:100]")
    assert DatasetName.parse("hf:a/b:main:train[10:20]+test[:5]") == ("a/b", "main", "train[10:20]+test[:5]")


@pytest.mark.parametrize("source", ["hf:", "hf:a:", "hf:a::train", "hf:a:b:c:d"])
def test_another_form_is_refused_with_the_form(source: str) -> None:
    with pytest.raises(TaskError, match="write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"):
        load_tasks(source)


def test_a_split_is_read_in_its_order_and_train_is_the_usual_one(folder: Path) -> None:
    training = [{"question": f"train {n}", "answer": n} for n in range(5)]
    assert load_tasks(f"hf:{folder}:train") == training
    assert load_tasks(f"hf:{folder}") == training
    assert load_tasks(f"hf:{folder}:test", 1) == [{"question": "test 0", "answer": 0}]
    assert load_tasks(f"hf:{folder}:train[1:3]") == training[1:3]
    assert place_of(f"hf:{folder}:test", [{"a": 1}, {"a": 2}], 1) == f"hf:{folder}:test, row 2"


def test_an_unknown_split_gives_the_splits(folder: Path) -> None:
    with pytest.raises(TaskError, match=r"there is no split 'validation'; the dataset has train, test, and"):
        load_tasks(f"hf:{folder}:validation")
    (folder / "train.jsonl").rename(folder / "validation.jsonl")
    with pytest.raises(TaskError, match="the dataset has the splits validation, test; write one, as hf:NAME"):
        load_tasks(f"hf:{folder}")


def test_a_config_is_named_before_the_split(with_configs: Path) -> None:
    assert load_tasks(f"hf:{with_configs}:socratic:train") == [{"question": "socratic"}]
    with pytest.raises(TaskError, match=r"the dataset has several configs: \['plain', 'socratic'\]; write hf:NAME:CON"):
        load_tasks(f"hf:{with_configs}:train")
    with pytest.raises(TaskError, match=r"'none' not found\. Available: \['plain', 'socratic'\]"):
        load_tasks(f"hf:{with_configs}:none:train")


def test_a_dataset_that_cannot_be_had_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot be downloaded .*; connect to the hub, unset HF_HUB_OFFLINE") as error:
        load_tasks("hf:nobody/nothing-of-that-name:train")
    assert "\n" not in str(error.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match=r"hf:.*empty: ") as error:
        load_tasks(f"hf:{tmp_path}/empty")
    assert "\n" not in str(error.value)


def test_a_column_of_images_is_refused_by_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"\x89PNG"]}), tmp_path / "train.parquet")
    with pytest.raises(TaskError, match="the column 'image' has values of the type binary"):
        load_tasks(f"hf:{tmp_path}")


def test_a_missing_library_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"needs the library datasets: pip install 'leyden-core\[datasets\]'"):
        load_tasks(f"hf:{folder}")


def test_a_held_out_set_is_called_after_dataset_config_and_split(folder: Path) -> None:
    assert held_out_name("hf:openai/gsm8k:main:test[:200]") == "gsm8k-main-test-200"
    assert held_out_name("data/val.parquet") == "val"
    assert read_held_out([{"name": "a", "source": f"hf:{folder}:test"}])["a"][1] == {"question": "test 1", "answer": 1}
    with pytest.raises(UsageError, match=r"name its split, as hf:.*sums:validation"):
        read_held_out([{"name": "a", "source": f"hf:{folder}"}])
