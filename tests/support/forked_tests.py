"""A pytest plugin: the processes that run tests are forks of one that has loaded the libraries.

Each of them imports every test file, and with these torch and all frameworks, which takes 18 s of a core. With
`--forked-tests=all` they are loaded once, for all that `-n` starts; only on Linux, elsewhere the option does nothing.
"""

import importlib.util
import sys
from contextlib import ExitStack
from typing import Any

import forks
import pytest

ALL = (
    *("aiohttp", "httpx", "torch", "transformers", "peft", "sqlalchemy", "redis.asyncio", "psycopg", "alembic.context"),
    *("openai.resources", "langchain_openai", "langchain.agents", "langgraph.graph"),
    *("autogen_agentchat.agents", "autogen_ext.models.openai", "agents", "crewai"),
)
"""What takes long to import, starts no thread then, and is no plugin of pytest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--forked-tests", default="", metavar="MODULES", help="load these once for all processes of -n; all: libraries"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Start the template, and have xdist start forks of it in the place of Python."""
    wanted: str = config.option.forked_tests
    if not wanted or sys.platform != "linux":
        return
    modules = [name for name in ALL if importlib.util.find_spec(name.partition(".")[0])]
    started = ExitStack()
    python = started.enter_context(forks.template(modules if wanted == "all" else wanted.split(",")))
    config.add_cleanup(started.close)
    for spec in specs:
        spec.python = python
