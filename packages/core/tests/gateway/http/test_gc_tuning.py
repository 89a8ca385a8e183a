"""The collector is as it was found, in processes of their own: that of the tests has set aside what it has loaded."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

BEGIN = "import gc; from leyden.core.gateway.http import gc_tuning; before = gc.get_threshold()"


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(
            """
gc_tuning.tune()
gc_tuning.tune()
assert gc.get_threshold() == gc_tuning.THRESHOLD
assert gc.get_freeze_count() > 0
gc_tuning.restore()
assert gc.get_threshold() == gc_tuning.THRESHOLD
assert gc.get_freeze_count() > 0
gc_tuning.restore()
assert gc.get_threshold() == before
assert gc.get_freeze_count() == 0
""",
            id="it is put back by the last who leaves",
        ),
        pytest.param(
            """
gc_tuning.tune()
gc.set_threshold(5000, 7, 7)
gc_tuning.restore()
assert gc.get_threshold() == (5000, 7, 7)
""",
            id="what somebody else has set stays",
        ),
        pytest.param(
            """
gc.freeze()
gc_tuning.tune()
gc_tuning.restore()
assert gc.get_threshold() == before
assert gc.get_freeze_count() > 0
""",
            id="what the process had set aside stays aside",
        ),
    ],
)
def test_the_collector_is_as_it_was_found(then: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + then], check=True)
