"""A pytest plugin: the fast tests draw few examples of each property, the long ones as many as the property asks for.

Most of what is wrong shows in the first examples. `-m "not long"` and `-m unit` draw at most `FEW` of each property;
`-m long` (with or without `and ...`) also selects every property, and draws all of them; so does a run without `-m`.
"""

from typing import Any

import pytest
from hypothesis import settings
from wanted_tests import are_long_wanted

FEW = 30
SETTINGS = "_hypothesis_internal_use_settings"
"""Private: there is no other way to change the settings of a test that names its own."""


def draw_few(test: Any) -> None:
    """Limit a property's examples; one that always draws the same ones keeps them."""
    given: settings = getattr(test, SETTINGS)
    if not given.derandomize and given.max_examples > FEW:
        setattr(test, SETTINGS, settings(given, max_examples=FEW))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Limit properties, or make them long tests as well; `levels`, whose hook comes before, has marked them by then."""
    wanted = config.option.markexpr
    for item in items:
        if not isinstance(item, pytest.Function) or not getattr(item.obj, "is_hypothesis_test", False):
            continue
        if are_long_wanted(wanted):
            item.add_marker("long")
        elif wanted in ("not long", "unit"):
            draw_few(getattr(item.obj, "__func__", item.obj))
