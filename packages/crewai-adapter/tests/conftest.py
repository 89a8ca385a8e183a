"""CrewAI warns of its own ways: while it is imported, and of deprecated fields that it reads itself in every agent."""

import importlib
import os
import warnings

import pytest

OWN_WARNINGS = (
    "ignore:function_calling_llm is deprecated:DeprecationWarning",
    "ignore:deprecated$:DeprecationWarning",
)

# Uninstrumented, it tells of every run, and waits for seconds for what models that are no service never tell it.
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    crews = importlib.import_module("crews")

bench, instrumented, llm, tape = crews.bench, crews.instrumented, crews.llm, crews.tape


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let CrewAI's own warnings pass in the tests of this folder."""
    for warning in OWN_WARNINGS:
        item.add_marker(pytest.mark.filterwarnings(warning))
