"""The programs of PostgreSQL run from wherever they are copied to."""

import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.server_programs import NO_POSTGRES, postgres_folder

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


def test_the_owner_can_get_at_the_folder_of_a_server_whatever_temporary_folder_root_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with postgres_server.PostgresServer() as server, psycopg.connect(server.uri_of(server.create())) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
