"""`AgentFile`: an agent of the zoo, and what its file expects of it. The format is described in tests/zoo/README.md."""

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from zoo_harness.script import Rule

AGENTS = Path(__file__).parents[1] / "agents"

LIBRARIES = [
    *("openai", "httpx", "httpx2", "requests", "aiohttp", "urllib3", "pydantic", "dotenv", "numpy", "yaml", "rich"),
    *("tenacity", "jinja2", "h2.connection", "httpcore", "h11", "anyio._backends._asyncio", "zoo_harness.rehearsal"),
]
FAMILIES: dict[str, list[str]] = {
    "plain": [*LIBRARIES, "pandas", "mcp.client.stdio"],
    "langchain": [
        *(*LIBRARIES, "langchain_openai", "langchain.agents", "langchain.agents.middleware", "langgraph.graph"),
        *("langgraph.prebuilt", "langgraph.func", "langgraph.checkpoint.memory", "langgraph.store.memory"),
        *("langchain_core.runnables.history", "langchain_core.vectorstores"),
    ],
    "autogen": [*LIBRARIES, "autogen_agentchat.agents", "autogen_agentchat.teams", "autogen_ext.models.openai"],
    "openai_agents": [*LIBRARIES, "agents"],
    "crewai": [*LIBRARIES, "crewai", "crewai.flow.flow", "crewai.tools"],
}
"""The folders of agents, each with what is imported once for all agents in it."""


class BadAgentFile(Exception):
    """A file of the zoo that does not follow the format; the text names the file and the fault."""


class AgentFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the YAML of an agent's file says; see README.md for each key."""

    tasks: list[dict[str, Any]]
    model: list[Rule]
    calls: int | list[int]
    author: str = "agent(task)"
    run: str = "agent"
    result: str | list[str] | None = None
    raises: str | None = None
    state: str | None = None
    agents: list[str] | None = None
    tools: list[str] | None = None
    not_trained: dict[str, int] = {}
    may_not_be_trained: dict[str, int] = {}
    other_requests: int = 0
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    hosts: list[str] = []
    input: str | None = None
    waiting: str | None = None
    broken: str | None = None
    seen: str | None = None

    def __post_init__(self) -> None:
        if len(self.tasks) < 2:
            raise ValueError("`tasks` must hold at least two tasks, so that rollouts of different tasks run at once")
        for name, each in (("calls", self.calls), ("result", self.result)):
            if isinstance(each, list) and len(each) != len(self.tasks):
                raise ValueError(f"`{name}` has {len(each)} items for {len(self.tasks)} tasks")
        if (self.result is None) == (self.raises is None):
            raise ValueError("exactly one of `result` and `raises` must be given")
        if self.waiting is not None and self.broken is not None:
            raise ValueError("`waiting` and `broken` exclude one another")
        if (self.waiting or self.broken) and not self.seen:
            raise ValueError("`waiting` and `broken` need `seen`, a text that the problem of today holds")
        if self.seen and not (self.waiting or self.broken):
            raise ValueError("`seen` belongs to `waiting` or `broken`")

    def calls_of(self, task: int) -> int:
        """Model calls that are answered for a task, by its place."""
        return self.calls[task] if isinstance(self.calls, list) else self.calls

    def result_of(self, task: int) -> str | None:
        """A text that the result of a task holds."""
        return self.result[task] if isinstance(self.result, list) else self.result

    @property
    def mark(self) -> str | None:
        """Why it cannot pass today; None: it must."""
        if self.waiting:
            return f"waiting: {self.waiting}"
        return f"broken: {self.broken}" if self.broken else None


class ZooAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's file, read."""

    family: str
    name: str
    path: Path
    title: str
    spec: AgentFile

    @property
    def reference(self) -> str:
        """The import string that Leyden runs."""
        return self.spec.run if ":" in self.spec.run else f"{self.path}:{self.spec.run}"


def read_agent(path: Path) -> ZooAgent:
    """Read one file. Raises BadAgentFile in one line."""
    where = f"{path.parent.name}/{path.name}"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    title, line, text = docstring.partition("\n---\n")
    if not line or len(title.strip().splitlines()) != 1:
        raise BadAgentFile(f"{where}: the docstring must be one line, a line `---`, and YAML")
    try:
        spec = msgspec.convert(yaml.safe_load(text), AgentFile)
    except (yaml.YAMLError, ValueError, re.error) as error:
        raise BadAgentFile(f"{where}: {error}") from error
    if path.parent.name not in FAMILIES:
        raise BadAgentFile(f"{where}: {path.parent.name} is none of the families {', '.join(FAMILIES)}")
    return ZooAgent(family=path.parent.name, name=path.stem, path=path, title=title.strip(), spec=spec)


def all_agents() -> list[ZooAgent]:
    """Read every file, by family and name."""
    return [read_agent(path) for family in FAMILIES for path in sorted((AGENTS / family).glob("*.py"))]
