"""What is found to be shared; the agents here are written as users write them, with what they keep beside them."""

import asyncio
import dataclasses
import enum
import functools
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.rollout_function import rollout
from leyden.core.runner.isolation import code_reading
from leyden.core.runner.isolation.shared_state import shared_objects

client = OpenAI(api_key="any")
history: list[Any] = []
count = 0
PRICES = {"apple": 1, "pear": 2}
WEATHER = {"Paris": {"temperature": 20}, "Oslo": {"temperature": 5}}
NAMES = ("Ann", "Bob")
SYSTEM = {"role": "system", "content": "Be brief."}
NUMBER = re.compile(r"\d+")
lock = asyncio.Lock()
limits: Any = threading.local()


class Signing(httpx.Auth):
    def __init__(self) -> None:
        self.signed = 0

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        self.signed += 1
        yield request


class Colour(enum.Enum):
    RED = 1


class Bot:
    """Keeps nothing after it is made."""

    def __init__(self, model: str) -> None:
        self.model = model

    def ask(self, task: Any) -> str:
        return f"{self.model}: {task}"


class Remembering:
    def __init__(self) -> None:
        self.last: Any = None

    def ask(self, task: Any) -> Any:
        before, self.last = self.last, task
        return before


class Collecting:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def ask(self, task: Any) -> int:
        self.seen.append(task)
        return len(self.seen)


class OfTheClass:
    tasks: ClassVar[list[Any]] = []
    turns = 0

    def ask(self, task: Any) -> None:
        self.tasks.append(task)


class Counting:
    turns = 0

    @classmethod
    def ask(cls, task: Any) -> int:
        cls.turns += 1
        return cls.turns


@dataclasses.dataclass(frozen=True)
class Settings:
    model: str = "gpt-4o-mini"


bot, remembering, collecting, settings = Bot("m"), Remembering(), Collecting(), Settings()


def price(name: str) -> int:
    return PRICES.get(name, 0)


def reads_constants(task: Any) -> Any:
    colour = Colour.RED.value + random.randint(0, 1)
    warm = [city for city in WEATHER if WEATHER[city]["temperature"] > 10]
    return price(task) + PRICES[task] + colour, warm, NAMES[0], NUMBER.findall(task), settings.model


def calls_a_model(task: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])


def makes_its_own(task: Any) -> Any:
    return Remembering().ask(task)


def uses_a_bot(task: Any) -> Any:
    return bot.ask(task)


def appends(task: Any) -> None:
    history.append(task)


def appends_far_below(task: Any) -> None:
    appends(task)


def counts(task: Any) -> None:
    global count
    count += 1


def passes_on(task: Any) -> Any:
    return [SYSTEM, {"role": "user", "content": task}]


def takes_an_inner_dict(task: Any) -> Any:
    return WEATHER[task]


def uses_what_remembers(task: Any) -> Any:
    return remembering.ask(task)


def sets_an_attribute(task: Any) -> None:
    Bot.last = task  # type: ignore[attr-defined]


def sets_the_environment(task: Any) -> None:
    os.environ["TOPIC"] = task


def sets_through_type(task: Any) -> None:
    type(bot).last = task  # type: ignore[attr-defined]


def has_a_default(task: Any, seen: list[Any] = []) -> int:  # noqa: B006
    seen.append(task)
    return len(seen)


@functools.lru_cache
def the_only_one() -> Remembering:
    return Remembering()


def uses_a_singleton(task: Any) -> Any:
    return the_only_one().ask(task)


def evaluates(task: Any) -> Any:
    return eval(task)


def imports_late(task: Any) -> Any:
    import a_module_of_the_users  # pyright: ignore[reportMissingImports]  # a test makes it

    made: Any = a_module_of_the_users
    return made.crew(task)


def notes_on_itself(task: Any) -> None:
    notes_on_itself.last = task  # type: ignore[attr-defined]


async def waits_for_a_lock(task: Any) -> None:
    async with lock:
        limits.task = task


def with_a_closure() -> Callable[[Any], int]:
    seen: list[Any] = []

    def ask(task: Any) -> int:
        seen.append(task)
        return len(seen)

    return ask


def with_a_counter() -> Callable[[Any], int]:
    turns = 0

    def ask(task: Any) -> int:
        nonlocal turns
        turns += 1
        return turns

    return ask


def logged(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def around(task: Any) -> Any:
        return function(task)

    return around


@logged
def wrapped_and_appends(task: Any) -> None:
    history.append(task)


@logged
def wrapped(task: Any) -> Any:
    return price(task)


class OwnRollout(LitAgent[Any]):
    """A deep copy of it is each attempt's own."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        self.seen.append(task)
        return float(len(self.seen))


class GlobalRollout(LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        history.append(task)
        return 1.0


class CannotBeCopied(LitAgent[Any]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[Any] = []

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        self.seen.append(task)
        return 1.0


@rollout
def typed(task: Any) -> float:
    return float(price(task))


@rollout
def typed_and_appends(task: Any) -> float:
    history.append(task)
    return 1.0


def makes_a_bot() -> Any:
    return typed


class MadeOnce:
    _made: Any = None

    def __new__(cls) -> Any:
        if cls._made is None:
            cls._made = super().__new__(cls)
        return cls._made


def makes_it_once(task: Any) -> None:
    made: Any = MadeOnce()
    made.last = task


class OneOfEach(type):
    one: Any = None

    def __call__(cls) -> Any:
        if cls.one is None:
            cls.one = super().__call__()
        return cls.one


class Shelf(metaclass=OneOfEach):
    def __init__(self) -> None:
        self.papers: list[Any] = []


def puts_on_the_shelf(task: Any) -> None:
    Shelf().papers.append(task)


def notes_the_request(request: httpx.Request) -> None:
    history.append(request)


hooked = OpenAI(api_key="any", http_client=httpx.Client(event_hooks={"request": [notes_the_request]}))
completions = AsyncOpenAI(api_key="any", http_client=httpx.AsyncClient(auth=Signing())).chat.completions


def calls_a_hooked_client(task: Any) -> Any:
    return hooked.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])


def calls_a_signing_client(task: Any) -> Any:
    return completions.create(model="m", messages=[{"role": "user", "content": task}])


@dataclasses.dataclass
class Visitor:
    name: str = ""
    seen: tuple[str, ...] = dataclasses.field(default_factory=tuple[str, ...])


visitor, host = Visitor(), Bot("m")


def meets(someone: Visitor, task: Any) -> None:
    someone.name = str(task)


def passes_it_to_what_changes_it(task: Any) -> str:
    meets(visitor, task)
    return visitor.name


def changes_it_by_another_name(task: Any) -> None:
    for one in (host, Bot("other")):
        one.model += str(task)


def makes_one_of_its_own(task: Any) -> str:
    own = Visitor(str(task))
    return own.name + host.model


prices: Callable[[Any], int] = lambda task: price(task)  # noqa: E731
appends_in_a_lambda: Callable[[Any], None] = lambda task: history.append(task)  # noqa: E731
NOTHING_SHARED: list[Any] = [
    *(reads_constants, calls_a_model, makes_its_own, uses_a_bot, wrapped, bot.ask, OwnRollout(), OwnRollout),
    *(makes_one_of_its_own, typed, makes_a_bot, functools.partial(calls_a_model), prices),
]
SHARED: list[tuple[Any, str]] = [
    (appends, "history (list), which appends()"),
    (appends_far_below, "history (list), which appends()"),
    (wrapped_and_appends, "history (list), which wrapped_and_appends()"),
    (appends_in_a_lambda, "history (list), which <lambda>()"),
    (functools.partial(appends), "history (list)"),
    (counts, "count (int), which counts()"),
    (passes_on, "SYSTEM (dict), which passes_on()"),
    (takes_an_inner_dict, "WEATHER (dict)"),
    (uses_what_remembers, "remembering (Remembering), which uses_what_remembers()"),
    (remembering.ask, "Remembering"),
    (collecting.ask, "seen (list)"),
    (OfTheClass().ask, "OfTheClass.tasks (list)"),
    (Counting.ask, "a class, which ask()"),
    (sets_an_attribute, "Bot, which sets_an_attribute()"),
    (sets_the_environment, "os, which sets_the_environment()"),
    (sets_through_type, "a class, which sets_through_type()"),
    (has_a_default, "a default of has_a_default() (list)"),
    (uses_a_singleton, "the_only_one"),
    (evaluates, "eval()"),
    (notes_on_itself, "notes_on_itself, which notes_on_itself()"),
    (waits_for_a_lock, "limits (_local)"),
    (with_a_closure(), "seen (list), which ask()"),
    (with_a_counter(), "turns"),
    (GlobalRollout(), "history (list), which rollout()"),
    (GlobalRollout, "history (list)"),
    (CannotBeCopied(), "CannotBeCopied"),
    (makes_it_once, "a class, which __new__()"),
    (puts_on_the_shelf, "a class"),
    (calls_a_hooked_client, "history (list), which notes_the_request()"),
    (calls_a_signing_client, "Signing"),
    (passes_it_to_what_changes_it, "visitor (Visitor), which passes_it_to_what_changes_it()"),
    (changes_it_by_another_name, "host (Bot), which changes_it_by_another_name()"),
    (typed_and_appends, "history (list), which typed_and_appends()"),
]


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


@pytest.mark.parametrize("agent", NOTHING_SHARED)
def test_nothing_is_shared(agent: Any) -> None:
    assert found(agent) == []


@pytest.mark.parametrize(("agent", "name"), SHARED)
def test_what_is_shared_is_named_with_what_uses_it(agent: Any, name: str) -> None:
    assert any(name in line for line in found(agent)), found(agent)


def test_a_function_without_source_is_not_trusted() -> None:
    scope: dict[str, Any] = {}
    exec("def ask(task):\n    return task", scope)
    (line,) = found(scope["ask"])
    assert "source cannot be read" in line


def test_an_object_that_raises_at_everything_counts_as_shared() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    hostile = Hostile()

    def ask(task: Any) -> Any:
        return hostile

    assert any("hostile" in line for line in found(ask))


def test_a_module_of_the_users_that_is_imported_late_counts_as_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_of_the_users.py").write_text("crew = print\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert any("a_module_of_the_users" in line for line in found(imports_late))


def test_an_agent_that_is_installed_is_the_users_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "installed_agent_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "memory.py").write_text("history = []\n")
    (package / "agent.py").write_text(
        "from installed_agent_package.memory import history\n\n\n"
        "def agent(task):\n    history.append(task)\n    return len(history)\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(code_reading, "_library_folders", lambda: (f"{tmp_path}/",))
    agent = AgentSource.load("installed_agent_package.agent:agent")
    assert [str(one) for one in shared_objects(agent)] == ["history (list), which agent() of agent.py uses"]
    monkeypatch.setattr(code_reading, "agent_packages", set[str]())
    assert shared_objects(agent) == []
