"""Attacks on whoever reads what a run leaves behind: secrets in every place where a user could have put them.

What is said to a model, and what it answers, is no such place: that is recorded as it is.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from planted import found_in, random_of, shaped, texts_below
from warm_process import run_leyden

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples/calculator_langgraph/policy"

COMMON = """
import json, os
from pathlib import Path

HERE = Path(os.environ["PLANTED_FOLDER"])
TEXTS = json.loads((HERE / "plants.json").read_text())


def plant(*names):
    for name in names:
        (HERE / "used" / name).touch()
    return " and ".join(TEXTS[name] for name in names)
"""
AGENT = """
import asyncio, ctypes, itertools, logging, subprocess, sys, warnings

from openai import AsyncOpenAI

sys.path.append(os.environ["PLANTED_FOLDER"])
from common import HERE, TEXTS, plant
from leyden.core import emit_exception

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key=TEXTS["client's key"], max_retries=0)
PRINTED = [name for name in TEXTS if name != "client's key"]
NAMES = [name for name in PRINTED if name not in ("run token", "store token")]  # no worker has these
logging.basicConfig()
once = itertools.count()


def note(text):
    print(text)


def to_c(text):
    ctypes.CDLL(None).puts(text.encode())
    ctypes.CDLL(None).fflush(None)


def to_child(text):
    writes = "import sys; sys.stderr.write(sys.argv[1] + chr(10))"
    subprocess.run([sys.executable, "-S", "-c", writes, text], check=True)


WAYS = (
    print,
    lambda text: print(text, file=sys.stderr),
    lambda text: os.write(2, (text + chr(10)).encode()),
    to_c,
    to_child,
    logging.getLogger("my.agent").warning,
    lambda text: warnings.warn(text),
    lambda text: print(chr(27) + "[31m" + text + chr(27) + "[0m" + chr(13)),
    lambda text: print("x" * 300_000 + " " + text),
    lambda text: print(repr({"said": text}), flush=True),
)


async def agent(task):
    kind = task["kind"]
    if kind == "prints":
        for way in WAYS:
            for name in PRINTED:
                way(plant(name))
        return ""
    if kind == "raises":
        plant("client's key")
        raise LookupError(f"no luck with {plant(*NAMES[task['from'] : task['to']])}")
    if kind == "raises from":
        try:
            raise OSError(plant(NAMES[0]))
        except OSError as error:
            raise ExceptionGroup(plant(NAMES[1]), [KeyError(plant(NAMES[2])), ValueError(plant(NAMES[3]))]) from error
    if kind == "emits":
        try:
            raise RuntimeError(plant(*NAMES))
        except RuntimeError as error:
            emit_exception(error)
    answer = await client.chat.completions.create(
        model="gpt-4.1-mini", temperature=0, max_tokens=8, messages=[{"role": "user", "content": "What is 3 plus 4?"}]
    )
    return answer.choices[0].message.content
"""
GIVEN = """
import itertools, os, sys

sys.path.append(os.environ["PLANTED_FOLDER"])
from common import TEXTS, plant
from leyden.core import Hook

calls = itertools.count()
NAMES = [name for name in TEXTS if name not in ("run token", "store token")]


def score(task, result):
    if task["kind"] == "unscored":
        raise RuntimeError("reward: " + plant(*NAMES))
    return float(next(calls) % 2)


class Broken(Hook):
    async def on_rollout_start(self, **given):
        raise RuntimeError("start: " + plant(*NAMES))

    async def on_trace_end(self, **given):
        print("hook: " + plant(*NAMES), file=sys.stderr)

    async def on_rollout_end(self, **given):
        raise RuntimeError("end: " + plant(*NAMES))


broken = Broken()
"""
COMMAND = """
import os, sys

sys.path.append(sys.argv[1])
os.environ["PLANTED_FOLDER"] = sys.argv[1]
from common import HERE, TEXTS, plant

for name in TEXTS:
    print(plant(name), file=sys.stderr)
for variable in ("OPENAI_API_KEY", "MY_PLAIN_SETTING"):
    with (HERE / ("seen-" + variable)).open("a") as file:
        print(os.environ[variable], file=file)
    print(variable, "is", os.environ[variable], file=sys.stderr)
print(os.environ["OPENAI_API_KEY"], os.environ["MY_PLAIN_SETTING"], sys.argv, file=sys.stderr)
sys.exit(3)
"""


class Refuses(BaseHTTPRequestHandler):
    """A server that no token opens."""

    def do_GET(self) -> None:
        self.send_error(403)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class Campaign:
    """Commands with secrets in them, and all that is left of them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.own = folder / "own"
        self.runs, self.temporary = folder / "runs", folder / "temporary"
        for path in (self.own / "used", self.runs, self.temporary):
            path.mkdir(parents=True)
        self.shaped = shaped()
        self.given = {name: random_of(name) for name in GIVEN_BY_VALUE}
        self.secrets = {name: looked_for for name, (_, looked_for) in self.shaped.items()} | self.given
        self.typed: set[str] = set()
        """Names of secrets that a command was given."""
        self.printed: dict[str, bytes] = {}
        self.environment = {
            **environment,
            "PLANTED_FOLDER": str(self.own),
            "TMPDIR": str(self.temporary),
            "LEYDEN_RUN_TOKEN": self.given["run token"],
            "LEYDEN_STORE_TOKEN": self.given["store token"],
            "MY_SERVICE_TOKEN": self.given["token in the environment"],
            "AWS_SECRET_ACCESS_KEY": self.given["AWS's secret in the environment"],
            "WANDB_API_KEY": self.given["key of a tracker"],
            "DATABASE_URL": f"postgresql://me:{self.given['password in a variable']}@db.example/x",
            "MY_PRIVATE_KEY": f"first-line\n{self.given['line of a variable']}\nlast-line",
            "MY_PLAIN_SETTING": self.given["given with --env"],
        }
        self.environment.pop("MLFLOW_TRACKING_URI", None)
        texts = {name: text for name, (text, _) in self.shaped.items()} | {
            name: self.given[name] for name in PRINTED_BY_VALUE
        }
        texts["client's key"] = "sk-proj-" + self.given["client's key"]
        self.write("plants.json", json.dumps(texts))
        self.write("common.py", COMMON)

    def write(self, name: str, text: str) -> Path:
        (self.own / name).write_text(text)
        return self.own / name

    def secret(self, name: str, form: str = "{}") -> str:
        """A secret that a command is given."""
        return form.format(self.given[name])

    def run(self, what: str, *arguments: str, code: int, own_process: bool = False) -> None:
        """Run `leyden`; in a process of its own, libraries find the temporary folder that is looked into."""
        if own_process:
            command = [sys.executable, "-m", "leyden.core.cli", *arguments]
            done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        else:
            done = run_leyden(arguments, cwd=ROOT, environment=self.environment, timeout=1200)
        said = " ".join((*arguments, *self.environment.values()))
        self.typed |= {name for name, secret in self.given.items() if secret in said}
        self.printed |= {f"standard output of {what}": done.stdout.encode()}
        self.printed |= {f"standard error of {what}": done.stderr.encode()}
        assert done.returncode == code, f"{what}: {done.stderr[-2000:]}"

    def train_agent(self) -> None:
        agent = self.write(f"{self.secret('name of the agent', 'glpat-{}')}.py", "import os\n" + AGENT)
        given = self.write(f"{self.secret('name of the reward', 'hf_{}')}.py", GIVEN)
        step = -(-len(self.shaped) // 4)
        kinds: list[dict[str, Any]] = [{"kind": kind} for kind in ("prints", "raises from", "emits")]
        kinds += [{"kind": "raises", "from": n * step, "to": (n + 1) * step} for n in range(4)]
        rows = [json.dumps(kind) for kind in (*kinds, {"kind": "asks", "n": 1}, {"kind": "asks", "n": 2})]
        tasks = self.write(f"{self.secret('name of the tasks', 'ghp_{}')}.jsonl", "\n".join(rows) + "\n")
        val = self.write(f"{self.secret('name of a held-out set', 'npm_{}')}.jsonl", rows[-1] + "\n")
        self.run(
            "train",
            *("train", f"{agent}:agent", "--tasks", str(tasks), "--val", str(val), "--reward", f"{given}:score"),
            *("--hook", f"{given}:broken", "--policy", str(POLICY), "--learning-rate", "1e-4", "--no-check"),
            *("--tasks-per-step", str(len(rows)), "--group-size", "2", "--steps", "1", "--no-sampled-eval"),
            *("--runs", str(self.runs), "--name", "planted", "--engine-log"),
            *("--tracker", "mlflow", "--tracker", "wandb", "--tracker", "tensorboard"),
            code=0,
            own_process=True,
        )
        unscored = self.write("unscored.jsonl", '{"kind": "unscored"}\n')
        self.run(
            "train with a broken reward",
            *("train", f"{agent}:agent", "--tasks", str(unscored), "--reward", f"{given}:score", "--steps", "1"),
            *("--policy", str(POLICY), "--tasks-per-step", "1", "--group-size", "2", "--json"),
            *("--runs", str(self.runs), "--name", "broken"),
            code=2,
        )

    def train_command(self) -> None:
        script = self.write("command.py", COMMAND)
        tasks = self.write("few.jsonl", '{"n": 1}\n{"n": 2}\n')
        self.run(
            "train of a command",
            *("train", "--tasks", str(tasks), "--reward", f"{self.own}/few.py:score", "--policy", str(POLICY)),
            *("--tasks-per-step", "2", "--group-size", "2", "--steps", "1", "--runs", str(self.runs)),
            *("--name", "command", "--env", "MY_PLAIN_SETTING", "--", sys.executable, str(script), str(self.own)),
            *("--api-key", self.secret("key in a command line", "sk-ant-{}")),
            self.secret("URL in a command line", "https://me:{}@api.example"),
            code=1,
        )

    def look(self) -> None:
        runs = ("--runs", str(self.runs))
        for name in ("planted", "command", "broken"):
            self.run(f"why {name}", "why", name, *runs, code=0)
            exported = str(self.runs / f"exported-{name}")
            self.run(f"export {name}", "export", name, "--to", exported, "--format", "jsonl", *runs, code=0)
        self.run("why as JSON", "why", "planted", "--json", *runs, code=0)
        self.run("show", "show", "planted", *runs, code=0)
        for n in range(4):
            self.run(f"show {n}", "show", "planted", f"train-v0-b0-{n}-0", *runs, code=0)
        self.run("models", "models", "list", "planted", "--json", *runs, code=0)

    def fail(self, refuses: str) -> None:
        """Commands that are given what cannot work: their errors name it. The server at `refuses` takes no token."""
        token = self.secret("token of a store's URL", f"http://{{}}@{refuses}")
        runs = ("--runs", str(self.runs))
        train = ("train", "--policy", str(POLICY), "--steps", "1", *runs)
        self.run("train on a store", *train, "--algorithm", "sft", "--set", f"spans={token}", "--name", "sft", code=2)
        agent, tasks = f"{self.own}/few.py:agent", f"{self.own}/few.jsonl"
        setting = self.secret("setting", "loss=sk-{}")
        self.run("a wrong setting", *train, agent, "--tasks", tasks, "--set", setting, code=2)
        for option, name, form in (
            ("--experiment", "experiment", "sk-{}"),
            ("--agent-match", "pattern", "gsk_{}|critic"),
            ("--route", "route", "agent=xoxb-{},to=provider"),
            ("--name", "name", "npm_{}"),
        ):
            given = (agent, "--tasks", tasks, "--reward", f"{self.own}/few.py:score", option, self.secret(name, form))
            self.run(f"a secret in {option}", *train, *given, code=2)
        endpoint = self.secret("endpoint", "http://me:{}@127.0.0.1:9/v1")
        dev = ("dev", agent, "--tasks", tasks, "-n", "1", "--model", "m")
        self.run("an endpoint", *dev, "--endpoint", endpoint, code=0)
        query = self.secret("query of an endpoint", "http://127.0.0.1:9/v1?api-key={}")
        self.run("an endpoint's query", *dev, "--endpoint", query, code=2)
        where = str(self.runs / "nothing")
        self.run("export of a store", "export", token, "--to", where, code=2)
        self.run("a wrong server", "run", "--server", self.secret("server", "ftp://{}@host"), agent, code=2)


GIVEN_BY_VALUE = (
    *("run token", "store token", "token in the environment", "AWS's secret in the environment", "key of a tracker"),
    *("password in a variable", "line of a variable", "given with --env", "client's key"),
    *("name of the agent", "name of the reward", "name of the tasks", "name of a held-out set"),
    *(
        "experiment",
        "pattern",
        "route",
        "name",
        "setting",
        "endpoint",
        "query of an endpoint",
        "token of a store's URL",
    ),
    *("server", "key in a command line", "URL in a command line"),
)
PRINTED_BY_VALUE = (
    *("run token", "store token", "token in the environment", "AWS's secret in the environment", "key of a tracker"),
    *("password in a variable", "line of a variable"),
)


def test_no_planted_secret_is_in_anything_that_a_run_leaves_behind(
    tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents, rewards, hooks, options, variables and names of files hold keys, and errors and prints show them."""
    campaign = Campaign(tmp_path, environment)
    campaign.write("few.py", "def score(task, result):\n    return 1.0\n\n\ndef agent(task):\n    return ''\n")
    campaign.train_agent()
    campaign.train_command()
    campaign.look()
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            campaign.fail(f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    seen = {path.name.removeprefix("seen-"): path.read_text().split() for path in campaign.own.glob("seen-*")}
    tokens = {f"token of attempt {n}": value for n, value in enumerate(seen["OPENAI_API_KEY"])}
    used = {path.name for path in (campaign.own / "used").iterdir()}
    unused = {*campaign.shaped, *PRINTED_BY_VALUE} - used | set(campaign.given) - used - campaign.typed
    assert not unused, "nobody has put these anywhere"
    assert set(seen["MY_PLAIN_SETTING"]) == {campaign.given["given with --env"]}
    secrets = campaign.secrets | tokens
    assert len(secrets) >= 40
    texts = campaign.printed | texts_below([campaign.runs, campaign.temporary])
    log = (campaign.runs / "planted" / "agents.log").read_text()
    assert log.count("***") > 10 * len(campaign.shaped), "agents have printed their secrets"
    found = found_in(texts, secrets)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(secrets)} secrets looked for in {len(texts)} texts, {len(found)} found\n")
    assert not found, "\n".join(found)
