"""What was acknowledged survives the death of a writer, and of Redis."""

from pathlib import Path

import pytest
from redis_rounds import rounds

from leyden.core.testing.redis_server import NO_REDIS, PROGRAM

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=NO_REDIS)


def test_everything_acknowledged_survives_a_killed_writer_and_a_killed_redis(tmp_path: Path) -> None:
    outcomes = rounds(2, tmp_path)
    assert [outcome.killed for outcome in outcomes] == ["server", "writer"]
    assert all(outcome.acknowledged["finished"] for outcome in outcomes)


@pytest.mark.long
def test_five_rounds_of_each(tmp_path: Path) -> None:
    assert len(rounds(10, tmp_path, seed=1)) == 10
