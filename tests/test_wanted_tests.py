"""Which tests the expressions of the Makefile select."""

import re
from pathlib import Path

from wanted_tests import are_long_wanted


def test_the_makefile_runs_long_tests_as_such() -> None:
    """What only long tests prepare, such as processes to fork, depends on the expression with which make runs them."""
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    expressions = re.findall(r'^(test-\w+|pytest):.*\n\t\$\(PYTEST\) -m "?([^"\n]+)', makefile, re.MULTILINE)
    assert {target: are_long_wanted(expression) for target, expression in expressions} == {
        "pytest": False,
        "test-unit": False,
        "test-long": True,
        "test-campaigns": True,
    }
