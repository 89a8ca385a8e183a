"""What a recorded call says of itself."""

from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.testing.factories import span
from leyden.core.trajectory.calls import newest_version


@pytest.mark.parametrize(
    ("said", "newest"),
    [
        ({}, -1),
        ({semconv.POLICY_VERSION: 3}, 3),
        ({semconv.POLICY_VERSION: 3, semconv.POLICY_VERSIONS: [3, 7]}, 3),
        ({semconv.POLICY_VERSION: 3, semconv.POLICY_VERSIONS: [3, 9, 4, 1]}, 4),
    ],
)
def test_the_newest_version_is_of_what_was_drawn_last(said: dict[str, Any], newest: int) -> None:
    assert newest_version(span(attributes=said)) == newest
