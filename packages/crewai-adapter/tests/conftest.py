"""CrewAI warns of its own ways: while it is imported, and of deprecated fields that it reads itself in every agent."""

import importlib
import os
import warnings

import pytest

OWN_WARNINGS = (
    "ignore:function_calling_llm is deprecated:DeprecationWarning",
    "ignore:deprecated$:DeprecationWarning",
)

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"  # uninstrumented, it tells of every run, and adapters are not to blame

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("crewai")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let CrewAI's own warnings pass in the tests of this folder."""
    for warning in OWN_WARNINGS:
        item.add_marker(pytest.mark.filterwarnings(warning))
