"""Attacks by another user of the machine, who has laid files where Leyden keeps its secrets."""

import os
import stat
from pathlib import Path

import pytest

from leyden.core.errors import UsageError
from leyden.core.store.sql.store import SqlStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.services.store import kept_token


def test_a_token_file_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker makes the token file first, so as to know the token; it is readable by its owner alone."""
    path = tmp_path / "leyden-store.token"
    path.write_text("known-to-the-attacker\n")
    path.chmod(0o600)
    assert kept_token(path) == "known-to-the-attacker"
    owner = path.stat().st_uid
    if owner == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        kept_token(path)


async def test_a_store_that_was_there_is_its_owners_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The attacker makes the file first, or finds one that everybody may write to."""
    path = tmp_path / "store.db"
    path.touch()
    path.chmod(0o666)
    store = await SqlStore.open(path)
    await store.enqueue_rollout(1)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    await store.close()
    assert modes == {0o600}
    assert f"other users of this machine could access the store {path}" in caplog.text


def test_nobody_else_opens_the_folder_of_a_run(tmp_path: Path) -> None:
    """Another user reads what agents were given and what they printed."""
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path, RunConfig(name="r", agent="a.py:run", policy="tiny"), ["x"], {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
