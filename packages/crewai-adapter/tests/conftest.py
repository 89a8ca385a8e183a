"""CrewAI warns of its own ways: while it is imported, and of deprecated fields that it reads itself in every agent."""

import importlib
import warnings

import pytest

OWN_WARNINGS = (
    "ignore:function_calling_llm is deprecated:DeprecationWarning",
    "ignore:deprecated$:DeprecationWarning",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    crews = importlib.import_module("crews")

bench, instrumented, llm, tape = crews.bench, crews.instrumented, crews.llm, crews.tape


@pytest.fixture(scope="session", autouse=True)
def started_database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the event loop that the database of CrewAI's memory starts once in a process, and keeps."""
    lancedb = importlib.import_module("lancedb")
    lancedb.connect(tmp_path_factory.mktemp("lancedb")).list_tables()


@pytest.fixture(autouse=True)
def closed_clients(closed_http_clients: None) -> None:
    """Close the HTTP clients of models, of which CrewAI makes one each and closes none."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let CrewAI's own warnings pass in the tests of this folder."""
    for warning in OWN_WARNINGS:
        item.add_marker(pytest.mark.filterwarnings(warning))
