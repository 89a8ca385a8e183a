import io
import sys
from pathlib import Path

import pytest

from leyden.core.errors import AgentNotFound
from leyden.core.runner.user_code.loading import load_object, reload_object
from leyden.core.tracing.wire import routing


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_is_loaded_with_its_folder_on_the_path(tmp_path: Path) -> None:
    write(tmp_path, "neighbour_of_agent.py", "VALUE = 7")
    path = write(tmp_path, "agent.py", "from neighbour_of_agent import VALUE\nclass Box:\n    inner = VALUE\n")
    assert load_object(f"{path}:Box.inner") == 7


def test_two_references_share_one_module(tmp_path: Path) -> None:
    path = write(tmp_path, "agent.py", "state = []\ndef score():\n    return state\n")
    assert load_object(f"{path}:score")() is load_object(f"{path}:state")


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a/agent.py", "x = 1"), write(tmp_path, "b/agent.py", "x = 2")
    assert (load_object(f"{first}:x"), load_object(f"{second}:x")) == (1, 2)


def test_a_dataclass_under_postponed_annotations_loads(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass D:\n    x: int\n"
    assert load_object(f"{write(tmp_path, 'agent.py', text)}:D")(3).x == 3


def test_a_module_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "shop_of_agents/__init__.py", "")
    write(tmp_path, "shop_of_agents/agent.py", "x = 5")
    monkeypatch.chdir(tmp_path)
    assert load_object("shop_of_agents.agent:x") == 5


def test_a_reloaded_object_is_a_fresh_copy(tmp_path: Path) -> None:
    reference = f"{write(tmp_path, 'agent.py', 'memory = []')}:memory"
    shared, fresh = load_object(reference), reload_object(reference)
    shared.append(1)
    assert fresh == []
    assert load_object(reference) is shared


def test_a_module_has_the_name_that_its_neighbours_import_it_by(tmp_path: Path) -> None:
    path = write(tmp_path, "shop_agent.py", "class Bot:\n    pass\n")
    user = write(tmp_path, "shop_reward.py", "from shop_agent import Bot\n")
    bot = load_object(f"{path}:Bot")
    assert (bot.__module__, bot.__qualname__) == ("shop_agent", "Bot")
    assert load_object(f"{user}:Bot") is bot


@pytest.mark.parametrize("name", ["json.py", "my-bot.v2.py", "pytest.py"])
def test_a_file_whose_name_is_taken_keeps_its_own_words(tmp_path: Path, name: str) -> None:
    stem = name.removesuffix(".py").replace("-", "_").replace(".", "_")
    bot = load_object(f"{write(tmp_path / 'shop', name, 'class Bot: pass')}:Bot")
    other = load_object(f"{write(tmp_path / 'other/shop', name, 'class Bot: pass')}:Bot")
    assert bot.__module__ == f"shop_{stem}"
    assert other.__module__.startswith(f"shop_{stem}_")
    assert other is not bot
    assert sys.modules["pytest"] is pytest


@pytest.mark.integration
def test_what_a_module_defines_is_found_by_a_child_process(tmp_path: Path) -> None:
    path = write(tmp_path, "spawning_agent.py", SPAWNING)
    assert load_object(f"{path}:agent")() == [1, 4, 9]


SPAWNING = """
import multiprocessing

def square(n):
    return n * n

def agent():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(square, [1, 2, 3])
"""


@pytest.mark.parametrize("text", ["from .tools import x", "from shop_inside.tools import x"])
def test_a_file_inside_a_package_is_to_be_named_as_a_module(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "shop_inside/__init__.py", "")
    write(tmp_path, "shop_inside/tools.py", "x = 1")
    path = write(tmp_path, "shop_inside/inner/__init__.py", "").with_name("agent.py")
    path.write_text(text.replace(".tools", "..tools", 1) if text.startswith("from .") else text)
    with pytest.raises(AgentNotFound, match=rf"shop_inside\.inner\.agent:x, from the folder {tmp_path}$"):
        load_object(f"{path}:x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentNotFound, match=r"name it as shop_inside\.inner\.agent:x$"):
        load_object(f"{path}:x")
    assert load_object("shop_inside.inner.agent:x") == 1


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("agent.py", "does not name an object"),
        (":agent", "does not name an object"),
        ("agent.py:", "does not name an object"),
        ("C:/nowhere/agent.py", "does not name an object"),
        ("nowhere/agent.py:agent", "nowhere/agent.py does not exist"),
        ("no_such_package_here:agent", "no module 'no_such_package_here'"),
        ("json.no_such_part:agent", "no module 'json.no_such_part'"),
        ("json:lods", "json has no 'lods'; did you mean loads"),
        ("json:zzzzzz", "json has no 'zzzzzz'"),
        ("json:decodr", "json has no 'decodr'"),
    ],
)
def test_a_wrong_reference_gets_one_clear_line(reference: str, message: str) -> None:
    with pytest.raises(AgentNotFound) as error:
        load_object(reference)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise KeyError('lost')", "KeyError: 'lost' ({path}, line 2)"),
        ("def f(:\n", "({path}, line 1)"),
        ("import no_such_package_here", "No module named 'no_such_package_here'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Skipped(BaseException): pass\nraise Skipped('no GPU')", "Skipped: no GPU ({path}, line 2)"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError ({path}, line 2)"),
        ("class E(Exception):\n    def __str__(self): exit(1)\nraise E", "E: (its text cannot be read: SystemExit)"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines ({path}, line 1)"),
        ("from pydantic import BaseModel\nclass A(BaseModel):\n    n: int\nA()", "n Field required"),
    ],
)
def test_a_module_that_cannot_be_imported_says_its_own_last_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "agent.py", text)
    with pytest.raises(AgentNotFound) as error:
        load_object(f"{path}:agent")
    assert message.format(path=path) in str(error.value)
    assert "\n" not in str(error.value)
    path.write_text("agent = 1")
    assert load_object(f"{path}:agent") == 1


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def __getattr__(name): import no_such_package_here", "agent", "reading 'agent' failed: ModuleNotFoundError:"),
        ("def __getattr__(name): exit(2)", "agent", "reading 'agent' failed: SystemExit: 2 ({path}, line 1)"),
        (
            "class A:\n    @property\n    def run(self): raise KeyError('OPENAI_API_KEY')\na = A()",
            "a.run",
            "reading 'run' failed: KeyError: 'OPENAI_API_KEY' ({path}, line 3); if Leyden answers",
        ),
    ],
)
def test_what_raises_when_it_is_read_says_so(tmp_path: Path, text: str, name: str, message: str) -> None:
    path = write(tmp_path, "agent.py", text)
    with pytest.raises(AgentNotFound) as error:
        load_object(f"{path}:{name}")
    assert message.format(path=path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_stop_from_the_keyboard_while_a_module_is_imported_stays_one(tmp_path: Path) -> None:
    path = write(tmp_path, "agent.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_object(f"{path}:agent")


def test_a_failing_import_inside_a_package_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "broken_shop.py", "import no_such_package_here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentNotFound, match=r"importing broken_shop failed: .*no_such_package_here"):
        load_object("broken_shop:agent")


@pytest.mark.integration  # openai asks `uname` what system it runs on
@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("import getpass\nkey = input('Key: ')", "reads standard input while it is imported, and there is no input"),
        (
            "import openai\nopenai.OpenAI(api_key='k', max_retries=0).chat.completions.create(model='m', messages=[])",
            "calls its model while it is imported: call the model in the agent's function",
        ),
        (
            "from urllib.request import urlopen\nurlopen('https://api.openai.com/v1/responses', b'{\"model\": \"m\"}')",
            "calls its model while it is imported: call the model in the agent's function",
        ),
    ],
)
def test_what_a_module_should_not_do_while_it_is_imported_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, advice: str
) -> None:
    path = write(tmp_path, "early.py", f"{source}\nagent = 1")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    routing.install(fail_closed=True)
    try:
        with pytest.raises(AgentNotFound, match=advice):
            load_object(f"{path}:agent")
    finally:
        routing.uninstall()
