"""Attacks by another user of the machine, who has laid files where Leyden keeps its secrets."""

import os
from pathlib import Path

import pytest

from leyden.core.errors import UsageError
from leyden.core.trainer.storing import kept_token


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
