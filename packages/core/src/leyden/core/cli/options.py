"""Shared options: definitions of options that several commands use, and functions that read their values."""

import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import msgspec
import typer

from leyden.core.data.bounds import check_bound
from leyden.core.data.encoding.provider_model import read_provider_model
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import Task
from leyden.core.engine.base import EnginePrecision
from leyden.core.errors import UsageError
from leyden.core.masking import mask_text
from leyden.core.runner.user_code.loading import AgentReference

RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", envvar="LEYDEN_RUNS")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines, for scripts.")]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the run; made from agent and time if not given.")
]
ExperimentOption = Annotated[
    str | None, typer.Option("--experiment", help="Name of a set of runs to compare this run with.")
]
TASK_SOURCES = "a file of JSON Lines, CSV or Parquet, or hf:NAME:SPLIT"
TasksOption = Annotated[str, typer.Option("--tasks", metavar="SOURCE", help=f"Tasks: {TASK_SOURCES}.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the order of tasks and of the engine's sampling.")]
PolicyOption = Annotated[str | None, typer.Option("--policy", help="Answer with this Hugging Face model.")]
EndpointOption = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        "--base-url",
        metavar="URL",
        help="Send model calls to this OpenAI-compatible base URL, or to a provider's model, as anthropic/MODEL; may "
        "be repeated with the base URLs of replicas.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Model at the endpoint that answers all calls. [default: the agent's own]")
]
ProviderOption = Annotated[
    str | None,
    typer.Option(help="Send a program's requests besides model calls (embeddings, files) to this base URL."),
]
ProviderKeyEnvOption = Annotated[
    str | None, typer.Option(help="Environment variable with the provider's key. [default: no key]")
]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", help="Rollouts at once.")]
IsolationOption = Annotated[
    str,
    typer.Option(
        "--isolation",
        help="process: a separate process for each rollout; shared: a shared one; auto: separate where needed.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URI", envvar="LEYDEN_STORE", help="Record the rollouts in this store. [default: in memory]"
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds one attempt may take.")]
PromptsOption = Annotated[
    Path | None, typer.Option("--prompts", help="Replace the agent's prompts as this file says (`leyden prompts`).")
]
DeviceOption = Annotated[str, typer.Option("--device", help="Device of the policies: cpu, or cuda for one GPU.")]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        help="Environment variable with the endpoint's key. [default: OPENAI_API_KEY, or the provider's own]",
    ),
]

InputOption = Annotated[
    str | None, typer.Option("--input", help="Function that makes the agent's input from a task, as file.py:make.")
]
HookOption = Annotated[
    list[str] | None, typer.Option("--hook", metavar="HOOK", help="A Hook, as file.py:name; may be repeated.")
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also accept requests for this host name; may be repeated."),
]

EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="NAME", help="Environment variable with a secret to pass to COMMAND; may be repeated."
    ),
]

RUNS = Path("runs")


def chosen_agent(agent: str | None, command: tuple[str, ...]) -> AgentReference | None:
    """Return the agent, given by name or as a command; None if neither was given.

    Raises UsageError when both were given, or when the program does not exist.
    """
    if not command:
        return agent
    if agent is not None:
        raise UsageError("give an agent, or a command after --, but not both")
    from leyden.core.runner.commands.command import CommandAgent

    return CommandAgent(command).arguments


def read_env(names: list[str], command: tuple[str, ...], *, here: bool = True) -> tuple[str, ...]:
    """Return the environment variables that a command receives. `here` states that it runs on this machine.

    Raises UsageError for an invalid name, for a variable that is not set on this machine, and without a command.
    """
    if not names:
        return ()
    from leyden.core.runner.commands.command import check_env, check_set

    if not command:
        raise UsageError(
            "--env has no effect without a command after --: an agent in Python gets the whole environment"
        )
    checked = check_env(names)
    if here:
        check_set(checked)
    return checked


def answering(
    policy: str | None, endpoints: list[str] | None, model: str | None, api_key_env: str | None
) -> NamedResources:
    """Return the resources for the chosen endpoint and its replicas; empty if the policy answers.

    Raises UsageError unless exactly one of policy and endpoint is given, for a model without an endpoint, and for an
    endpoint that cannot be called.
    """
    from leyden.core.gateway.upstream.endpoints import check_endpoint

    if (policy is None) == (not endpoints):
        raise UsageError("give either --policy (a Hugging Face model) or --endpoint")
    if not endpoints:
        if model is not None:
            raise UsageError("--model is the name of a model at an --endpoint; --policy already names the model")
        return {}
    endpoint, *replicas = endpoints
    key = os.environ.get(api_key_env or ("" if read_provider_model(endpoint) else "OPENAI_API_KEY"))
    if key is None and api_key_env is not None and read_provider_model(endpoint):
        raise UsageError(f"--api-key-env {api_key_env}: this environment variable is not set")
    llm = LLM(endpoint=endpoint, model=model or "", api_key=key, replicas=tuple(replicas))
    given = check_endpoint(llm, "--endpoint")
    return {"main_llm": llm if given is None else msgspec.structs.replace(llm, model=given.model)}


def with_prompts(resources: NamedResources, prompts: Path | None) -> NamedResources:
    """Return the resources with the prompt edits of a file; raises PromptError for a file that cannot be used."""
    if prompts is None:
        return resources
    from leyden.core.trainer.prompt_file import read_prompts

    return {**resources, "prompts": read_prompts(prompts)}


def check_policy_device(device: str, policy: str | None) -> None:
    """Raise UsageError if `device` cannot be used, or if no policy is loaded that could use it."""
    from leyden.core.policy.device import check_device

    if policy is None and device != "cpu":
        raise UsageError("--device has no effect with --endpoint: no policy is loaded here")
    check_device(device)


def default_name(agent: AgentReference) -> str:
    """Return a run name from the time and the agent's file or module, or the first file on its command line."""
    return f"{agent_name(agent)[:40]}-{time.strftime('%m%d-%H%M%S')}"


def agent_name(agent: AgentReference) -> str:
    """Return the agent's part of the default run name."""
    if not isinstance(agent, str):
        agent = next((word for word in agent[1:] if Path(word).is_file()), agent[0])
    stem = agent.rpartition(":")[0] or agent
    folder = Path(stem)
    base = mask_text(folder.parent.name if folder.suffix and folder.stem == "agent" else folder.stem)
    return "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in base).strip("-._") or "run"


_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
"""A number with an exponent, as JSON and YAML 1.2 have it."""


def read_settings(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """Read `key=value` pairs. A value is read as JSON if it is valid JSON, otherwise as text.

    Raises UsageError for a pair without key or `=`, a number that is not finite, and a value that is too large.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} takes key=value, not {pair!r}")
        try:
            settings[key] = json.loads(value, parse_constant=_finite, parse_float=_finite)
        except json.JSONDecodeError:
            settings[key] = value
        except OverflowError:
            raise UsageError(f"{option} {key} must be a finite number, not {value}") from None
        # an integer of thousands of digits, or lists nested a thousand levels deep
        except (ValueError, RecursionError):
            raise UsageError(
                f"{option} {key}: the value of {len(value):,} characters is too long, or nested too deeply"
            ) from None
    return settings


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise OverflowError
    return number


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping; raises UsageError, with a message of one line, for any other file.

    `1e-5` is a number, as in YAML 1.2; PyYAML alone reads YAML 1.1, in which it is text.
    """
    import yaml

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    try:
        text = path.read_text(encoding="utf-8")
        _check_keys(yaml.compose(text, loader), path)
        found: Any = yaml.load(text, loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if found is None:
        raise UsageError(f"{path} is empty; write settings as KEY: VALUE, one a line")
    if not isinstance(found, dict):
        kind = "a list" if isinstance(found, list) else "a single value"
        raise UsageError(f"{path} must hold keys and values, not {kind}")
    return cast("dict[str, Any]", found)


def _check_keys(node: Any, path: Path) -> None:
    """Raise UsageError if a mapping of the file has a key twice, of which PyYAML would take the last."""
    import yaml

    waiting, seen = [node], set[int]()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, yaml.CollectionNode) or id(one) in seen:  # an alias is the node of its anchor
            continue
        seen.add(id(one))
        if not isinstance(one, yaml.MappingNode):
            waiting += one.value
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in one.value:
            waiting.append(value)
            if not isinstance(key, yaml.ScalarNode):
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise UsageError(f"{path} has the key {key.value} twice, in lines {lines[name]} and {line}; remove one")
            lines[name] = line


def read_attribute_match(pairs: list[str]) -> dict[str, str]:
    """Read `attribute=regex` pairs; raises UsageError for any other text or a duplicate attribute."""
    named: dict[str, str] = {}
    for pair in pairs:
        name, equals, pattern = pair.partition("=")
        if not equals or not name or name in named:
            raise UsageError(f"--attribute-match takes attribute=regex, each attribute once, not {pair!r}")
        named[name] = pattern
    return named


def read_frozen(pairs: list[str]) -> dict[str, str]:
    """Read `name=policy` pairs; raises UsageError for any other text or a duplicate name."""
    named: dict[str, str] = {}
    for pair in pairs:
        name, equals, source = pair.partition("=")
        if not equals or not name or not source or name in named:
            raise UsageError(f"--frozen takes name=policy, each name once, not {pair!r}")
        named[name] = source
    return named


def read_policies(given: list[str]) -> str | dict[str, str]:
    """Read the policy to train, or `name=policy` for each of several; raises UsageError for any other text."""
    pairs = [(name, source) for name, equals, source in (each.partition("=") for each in given) if equals]
    if not pairs or any("/" in name for name, _ in pairs):  # a folder name may contain =
        if len(given) == 1:
            return given[0]
        raise UsageError("several policies need names that routes can use: give --policy NAME=FOLDER for each")
    named = dict(pairs)
    if len(named) < len(given) or not all(name and source for name, source in pairs):
        raise UsageError(f"--policy takes name=policy, each name once, or one policy alone, not {' '.join(given)!r}")
    return named


def read_prompt_templates(pairs: list[str]) -> dict[str, Any]:
    """Read `name=file` pairs, and the files as prompt templates; raises UsageError for any other text."""
    from leyden.core.trainer.run_folder.prompts.files import read_prompt

    named: dict[str, Any] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not equals or not name or not file or name in named:
            raise UsageError(f"--prompt takes name=file, each name once, not {pair!r}")
        named[name] = msgspec.to_builtins(read_prompt(Path(file)))
    return named


def read_prompt_edits(file: Path | None) -> dict[str, Any]:
    """Read a file of prompts, as the resource that `with_prompts` adds; raises PromptError for any other file."""
    return {name: msgspec.to_builtins(edits) for name, edits in with_prompts({}, file).items()}


def read_reward_weights(pairs: list[str]) -> dict[str, float]:
    """Read `dimension=weight` pairs; raises UsageError for any other text or a duplicate dimension."""
    named: dict[str, float] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = None
        if not name or name in named or weight is None:
            raise UsageError(f"--reward-weight takes dimension=number, each dimension once, not {pair!r}")
        check_bound("reward_weight", weight, f"--reward-weight {name}")
        named[name] = weight
    return named


def warn_of_host(host: str) -> None:
    """Write a warning to standard error if other machines can reach the address `host`."""
    if host not in ("127.0.0.1", "::1", "localhost"):
        sys.stderr.write(
            f"leyden: other machines can reach {host}, and HTTP sends tokens unencrypted: use a proxy with TLS\n"
        )


def read_update(value: str) -> Literal["swap", "drain"]:
    """Read when an update takes effect for calls in flight; raises UsageError for an unknown value."""
    if value not in ("swap", "drain"):
        raise UsageError(f"--update must be swap or drain, not {value!r}")
    return value


def read_engine(value: str) -> Literal["embedded", "vllm"]:
    """Read which engine serves the policies; raises UsageError for an unknown value."""
    if value not in ("embedded", "vllm"):
        raise UsageError(f"--engine must be embedded or vllm, not {value!r}")
    return value


def read_engine_precision(value: str) -> EnginePrecision:
    """Read the precision of the served weights; raises UsageError for an unknown value."""
    known = get_args(EnginePrecision)
    if value not in known:
        raise UsageError(f"--engine-precision must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
    return cast("EnginePrecision", value)


def read_held_out(sets: Sequence[Mapping[str, str]]) -> dict[str, list[Task]]:
    """Load held-out sets, each a `name` and its `source`; raises UsageError when two have the same name."""
    from leyden.core.trainer.rollouts.task_sources.hugging_face import DatasetName
    from leyden.core.trainer.rollouts.tasks import is_dataset, load_tasks

    loaded: dict[str, list[Task]] = {}
    for one in sets:
        if one["name"] in loaded:
            raise UsageError(f"two held-out files are called {one['name']!r}; give them different names")
        if is_dataset(source := one["source"]) and DatasetName.parse(source).split is None:
            raise UsageError(f"held-out {source}: name its split, as {source}:validation")
        loaded[one["name"]] = load_tasks(source)
    return loaded


def held_out_name(source: str) -> str:
    """Return the name of a held-out set, with secrets masked, because it names files and metrics.

    A file's set is called by the file's stem, that of a dataset by its last name, config and split.
    """
    from leyden.core.trainer.rollouts.task_sources.hugging_face import DatasetName
    from leyden.core.trainer.rollouts.tasks import is_dataset

    return mask_text(DatasetName.parse(source).set_name if is_dataset(source) else Path(source).stem)
