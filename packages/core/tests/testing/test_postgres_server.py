"""The programs of PostgreSQL run from wherever they are copied to."""

import subprocess
from pathlib import Path

import pytest

from leyden.core.testing import postgres_server
from leyden.core.testing.server_programs import NO_POSTGRES, postgres_folder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(postgres_folder() is None, reason=NO_POSTGRES)]


def test_programs_that_their_owner_cannot_reach_are_copied_with_all_that_they_need(
    tmp_path: Path,
) -> None:
    installed = postgres_folder()
    assert installed is not None
    programs = postgres_server._copied(installed, tmp_path)  # pyright: ignore[reportPrivateUsage]  # for root alone
    assert programs.is_relative_to(tmp_path)
    for name in ("initdb", "postgres"):
        done = subprocess.run([programs / name, "--version"], capture_output=True, text=True, check=True)
        assert "PostgreSQL" in done.stdout
