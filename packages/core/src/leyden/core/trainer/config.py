"""Run configuration: `RunConfig` holds every setting of a run as one frozen struct, stored in `config.yaml`."""

import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from leyden.core.data.bounds import BOUNDS, check_bound
from leyden.core.data.encoding.provider_model import ProviderModel, read_provider_model
from leyden.core.data.isolation import Isolation
from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.route import POLICY, PROVIDER, Route
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EnginePrecision
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.errors import RunError, UsageError, first_line
from leyden.core.gateway.calls.span_writer import SpanWriterLimits
from leyden.core.masking import MASK, PASSWORD_IN_URL, mask_text, mask_values
from leyden.core.policy.device import check_device_name
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.trainer.agents.placement import RunnerPlacement, check_workers
from leyden.core.trainer.monitoring.trackers import tracker_names
from leyden.core.trainer.run_folder.sharing.store_location import recorded_uri
from leyden.core.trainer.serving.endpoint import ModelEndpoint
from leyden.core.trainer.serving.provider import ProviderEndpoint
from leyden.core.trajectory.select import Selector

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
GROUP_SIZE = 8
_OPTION = {"timeout_seconds": "timeout"}
"""Option names of the fields whose option has another name."""


class EvaluationSet(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out set of tasks: its name in reports, and the file or argument that its rows came from."""

    name: str
    source: str


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a run. The defaults are the setting that was tested."""

    name: str
    experiment: str | None = None
    """Name of the experiment, a set of runs that are compared with each other."""
    policy: str | dict[str, str] | None = None
    """Folder or hub name of a Hugging Face causal language model. A dictionary gives several policies by name, each
    with its own weights; `routes` then maps calls to policies. None: the model at `endpoint` answers the agents."""
    endpoint: ModelEndpoint | None = None
    """Endpoint that answers the agents of a run without a policy."""
    prompts: dict[str, PromptTemplate] = {}
    """Prompt templates by name among the resources with which the run begins."""
    prompt_edits: dict[str, PromptEdits] = {}
    """Prompt edits by name among these resources."""
    agent: AgentReference | None = None
    """Import string `path.py:attribute` or `module:attribute`, or the words of a command line. For a live object, a
    description of it. None when no agent runs: the run then learns from stored rollouts and evaluates nothing."""
    reward: str | None = None
    """Import string of the reward function; None when the agent itself returns or emits its rewards."""
    reward_weights: dict[str, float] = {}
    """Weight of each reward dimension. When empty, each dimension has weight 1."""
    input: str | None = None
    """Import string of a function from a task row to the agent's input. None when the adapter derives it from the
    row."""
    hooks: tuple[str, ...] = ()
    """Import strings of `Hook` objects or classes."""
    env: tuple[str, ...] = ()
    """Names of environment variables that hold secrets and are passed to an agent command nevertheless."""
    tasks: str = ""
    """Source of the training tasks; the rows themselves are kept in the run folder."""
    held_out: tuple[EvaluationSet, ...] = ()
    """Held-out sets. The first one provides the report's headline."""
    steps: int = 25
    """Number of weight updates; with 0, the run only evaluates the policy on its held-out sets."""
    tasks_per_step: int = 16
    group_size: int = GROUP_SIZE
    """Rollouts of each task; the mean reward of the group is the baseline."""
    seed: int = 0
    sampling: Sampling = Sampling()
    """Sampling parameters of training rollouts; they override the agent's own."""
    agent_match: str | None = None
    """Regular expression over agent or node name. Calls of other agents are answered but not trained on."""
    span_match: str | None = None
    """Regular expression over the names of a call's span and of its ancestors. Like the next two fields, it restricts
    the selection further."""
    attribute_match: dict[str, str] = {}
    """Regular expressions by attribute name, over its value on a call's span or on one of its ancestors."""
    predicate: str | None = None
    """Import string of a function that receives a call's span and its ancestors."""
    workers: int = 1
    """Number of agent processes; with `max_workers`, the smallest number."""
    max_workers: int | None = None
    """Largest number of agent processes: between the two, the number follows the load. None: it does not change."""
    concurrency: int = 64
    """Number of concurrent rollouts in each agent process."""
    isolation: Isolation = "auto"
    """Whether rollouts share their agent process or get one each."""
    runners: RunnerPlacement = RunnerPlacement()
    """Where the agent processes run."""
    timeout_seconds: float = 120.0
    """Time limit of one attempt, in seconds."""
    max_attempts: int = 2
    """Maximum number of attempts of a rollout that times out or loses its worker. An agent that raises is not
    retried."""
    evaluate_sampled: bool = True
    """Whether evaluations also use the training sampling, beside the agent's own."""
    record_tokens: bool = True
    """Whether each step writes a file with what it computed for every trained token, about 20 bytes a token."""
    eval_every: int = 0
    """Steps between evaluations; the run then keeps the best version. 0: evaluate only before the first step and after
    the last."""
    patience: int | None = None
    """Number of consecutive evaluations without a noticeable rise after which the run stops early; None: never."""
    check: bool = True
    """Whether the first batch is used to check that the run can learn, before it trains."""
    checkpoint_every: int = 1
    keep_checkpoints: int = 2
    store: str | None = None
    """URI of a store that keeps the rollouts, and that other runs may share; None: a file of the run's folder does."""
    artifacts: str | None = None
    """Folder or URL that gets a copy of the run's folder after every step, from which other machines continue; None:
    no copy."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """Engine that serves the policies: in this process, or one vLLM server for each policy."""
    vllm: VllmOptions = VllmOptions()
    """Options of the vLLM servers."""
    device: str = "cpu"
    """Device of policy and engine: `cpu`, or `cuda` for one GPU."""
    threads: int | None = None
    """Number of torch threads of the engine; None chooses it by the size of the policy."""
    engine_precision: EnginePrecision = "float32"
    """Precision in which the embedded engine keeps the weights that it serves. The trainer's weights are float32."""
    deterministic: bool = False
    """Whether the same seed gives the same rollouts and weights, bit for bit. The engine then decodes one call at a
    time."""
    tracker: tuple[str, ...] | str | None = None
    """Experiment trackers that also receive the metrics of each step."""
    algorithm: str = "lightning_rl"
    """Name of a registered algorithm, or an import string."""
    algorithm_config: dict[str, Any] = {}
    routes: tuple[Route, ...] = ()
    """Routes of model calls. The first match decides; a call without a match goes to the policy."""
    provider: ProviderEndpoint | None = None
    """Endpoint for a program's requests besides model calls; None: they are refused."""
    frozen: dict[str, str] = {}
    """Frozen policies that routes may name: name to folder or hub name. They answer calls and are never trained."""
    sides: tuple[str, ...] = ()
    """Names of the policies of an algorithm that trains several side by side; each starts as a copy of `policy`."""
    acting: tuple[str, ...] = ()
    """The subset of `sides` that answers training rollouts, in turn if there are several."""
    update: Literal["swap", "drain"] = "swap"
    """When new weights take effect for calls in flight: `swap` between two tokens; `drain` after the calls end, while
    new calls wait."""
    record_within: float = 0.0
    """Maximum time in seconds, at most 2, before the record of a call is stored. 0 stores it before the response
    ends."""
    engine_log: bool = False
    """Whether the engine writes its own record of every call to `engine.jsonl` in the run folder."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot work."""
        check_name(self.name)
        if self.experiment is not None and not NAME.fullmatch(self.experiment):
            raise UsageError(f"experiment name {self.experiment!r} must match {NAME.pattern}")
        for field in self.__struct_fields__:
            option, value = _OPTION.get(field, field), getattr(self, field)
            if option in BOUNDS and value is not None:
                check_bound(option, value)
        check_bound("temperature", self.sampling.temperature)
        if self.sampling.max_tokens is not None:
            check_bound("max_tokens", self.sampling.max_tokens)
        for name, weight in self.reward_weights.items():
            check_bound("reward_weight", weight, f"the weight of reward dimension {name!r}")
        Selector(agent_match=self.agent_match, span_match=self.span_match, attribute_match=self.attribute_match)
        for name in [*self.prompts, *self.prompt_edits]:
            check_prompt_name(name)
        if twice := sorted(self.prompts.keys() & self.prompt_edits.keys()):
            raise UsageError(f"a prompt template and prompt edits are both called {twice[0]!r}; rename the template")
        self._check_routes()
        self._check_endpoint()
        SpanWriterLimits(within=self.record_within)
        tracker_names(self.tracker)
        self._check_evaluation()
        self._check_deterministic()
        self._check_engine()
        check_workers(self.workers, self.max_workers)
        if self.sampling.temperature <= 0:
            raise UsageError("training needs a temperature above 0")
        if self.sampling.truncates and self.engine != "embedded":
            raise UsageError("training needs top_p 1, top_k 0 and min_p 0: only the embedded engine records truncation")

    @property
    def policies(self) -> dict[str, str]:
        """Trained policies: folder or hub name by name. A single policy without a given name is called `policy`.

        Empty in a run without a policy.
        """
        if isinstance(self.policy, str):
            return dict.fromkeys(self.sides or (POLICY,), self.policy)
        return self.policy or {}

    @property
    def most_workers(self) -> int:
        """The largest number of agent processes."""
        return self.max_workers or self.workers

    @property
    def answering(self) -> tuple[str, ...]:
        """Names of the policies that answer training rollouts; empty in a run without a policy."""
        return self.acting or tuple(self.policies)

    @property
    def off_policy(self) -> tuple[str, ...]:
        """Names of the sides that learn from calls which another side answered."""
        return tuple(side for side in self.sides if self.acting != (side,))

    @property
    def providers(self) -> dict[str, ProviderModel]:
        """Models of providers that routes name, by the text of the route."""
        policies = {*self.policies, *self.frozen, POLICY, PROVIDER}
        named = {route.to: read_provider_model(route.to) for route in self.routes if "/" in route.to}
        return {name: given for name, given in named.items() if given is not None and name not in policies}

    @property
    def has_names(self) -> bool:
        """Whether the policies have given names; each then has a subfolder of that name in checkpoints and exports."""
        return bool(self.sides) or isinstance(self.policy, dict)

    @property
    def usual(self) -> str:
        """Name of the policy for calls that reach the gateway directly or match no route."""
        if self.sides:
            return self.acting[0]
        if self.policy is None:
            return POLICY
        names = self.policies
        ends = [route.to for route in self.routes if route.fits_all and route.to in names]
        return POLICY if POLICY in names else next(iter([*ends, *names]))

    def _check_routes(self) -> None:
        names = self.policies
        if not names and self.endpoint is None:
            raise UsageError("no policy is given: give --policy FOLDER, or --policy NAME=FOLDER")
        for name in names.keys() | self.frozen.keys():
            if name == PROVIDER or (name == POLICY and name in self.frozen):
                raise UsageError(f"a policy cannot be called {name!r}: this name is reserved")
            if name in names and name in self.frozen:
                raise UsageError(f"policy {name!r} is both trained and frozen; give it once")
            if name in names and (not NAME.fullmatch(name) or name.endswith("-adapter")):
                raise UsageError(f"policy name {name!r} must match {NAME.pattern}, and not end in -adapter")
        self._check_sides()
        known = (*(names if names and not self.sides else (POLICY,)), PROVIDER, *self.frozen)
        providers = self.providers
        for route in self.routes:
            if route.to not in known and route.to not in providers:
                message = f"a route goes to {route.to!r}, which is none of {', '.join(known)}"
                raise UsageError(f"{message}; name it with --policy or --frozen, or give PROVIDER/MODEL")
        if self.sides or not names:
            return  # the rollout's metadata name the side that answers it; without a policy, the endpoint answers
        if POLICY not in names and not any(route.fits_all for route in self.routes):
            raise UsageError(
                "a call that matches no route would reach no policy: end with --route to=NAME, or name one of "
                f"{', '.join(names)} {POLICY!r}"
            )
        self._check_reached()

    def _check_endpoint(self) -> None:
        """Raise UsageError for options that have no effect where an endpoint answers instead of a policy."""
        if self.endpoint is None:
            return
        if self.policy is not None:
            raise UsageError("a run has a --policy, which it trains, or an --endpoint, which answers in its place")
        without_effect = {
            "deterministic": self.deterministic,
            "device": self.device != "cpu" and self.endpoint.policy is None,
            "engine": self.engine != "embedded",
            "engine-log": self.engine_log,
            "engine-precision": self.engine_precision != "float32" and self.endpoint.policy is None,
            "frozen": bool(self.frozen),
            "group-size": self.group_size != GROUP_SIZE,
            "max-tokens": self.sampling.max_tokens is not None,
            "temperature": msgspec.structs.replace(self.sampling, max_tokens=None) != Sampling(),
            "threads": self.threads is not None and self.endpoint.policy is None,
            "update": self.update != "swap",
        }
        if given := [f"--{name}" for name, is_given in without_effect.items() if is_given]:
            raise UsageError(f"no policy is served or trained in a run with an --endpoint; remove {', '.join(given)}")

    def _check_sides(self) -> None:
        if self.sides and not isinstance(self.policy, str):
            raise UsageError(
                f"{self.algorithm} trains the policies {' and '.join(self.sides)}, which start from the same weights: "
                f"give --policy FOLDER once, without a name, not {', '.join(self.policies)}"
            )
        if not set(self.acting) <= set(self.sides) or (self.sides and not self.acting):
            raise UsageError(f"acting must name at least one of the sides {', '.join(self.sides)}, and only sides")

    def _check_reached(self) -> None:
        last = next((at for at, route in enumerate(self.routes) if route.fits_all), None)
        tried = self.routes if last is None else self.routes[: last + 1]
        reached = {route.to for route in tried} | ({POLICY} if last is None else set[str]())
        for name in self.policies:
            if self.has_names and name not in reached:
                raise UsageError(f"no route reaches policy {name!r}: give --route agent=...,to={name}, or leave it out")

    def _check_evaluation(self) -> None:
        for held_out in self.held_out:
            if not held_out.name or {"/", "\\", "\0"} & set(held_out.name) or held_out.name.startswith("."):
                raise UsageError(
                    f"held-out set {held_out.name!r}: a name must not be empty, contain / or \\, or begin with a dot"
                )
        if self.eval_every and not self.held_out:
            raise UsageError("--eval-every has no effect without held-out tasks; give some with --val")
        if self.patience is None:
            return
        if self.patience < 1:
            raise UsageError(f"patience must be at least 1, got {self.patience}")
        if not self.eval_every:
            raise UsageError("--patience counts evaluations and has no effect without --eval-every")

    def _check_deterministic(self) -> None:
        loop = self.algorithm_config.get("loop", "sync")
        if not self.deterministic:
            return
        if self.threads not in (None, 1):
            raise UsageError(f"a deterministic run computes on one thread; remove --threads {self.threads}")
        if loop == "async":
            raise UsageError(
                "a deterministic run cannot have loop async, in which the duration of an update decides which weights "
                "answer a call; set loop=one_off or loop=sync"
            )

    def _check_engine(self) -> None:
        check_device_name(self.device)
        if self.engine == "embedded":
            if self.vllm != VllmOptions():
                raise UsageError("options of vLLM have no effect without --engine vllm")
            return
        if self.deterministic:
            raise UsageError(
                "a deterministic run needs --engine embedded: rounding in vLLM depends on how calls are batched"
            )
        if self.vllm.transfer == "ipc" and self.device == "cpu":
            raise UsageError("vllm.transfer=ipc shares a GPU's memory, but device is cpu")
        self._check_sleep()
        if self.engine_precision != "float32":
            raise UsageError(
                "--engine-precision applies only to the embedded engine; with --engine vllm, remove it: the server "
                "computes in float32"
            )
        if self.threads is not None:
            raise UsageError(
                f"--threads applies only to the embedded engine; with --engine vllm, remove --threads {self.threads}"
            )

    def _check_sleep(self) -> None:
        if not self.vllm.sleep:
            return
        if self.device == "cpu":
            raise UsageError("vllm.sleep leaves a GPU's memory to the trainer, but device is cpu")
        if (loop := self.algorithm_config.get("loop", "sync")) != "sync":
            raise UsageError(
                f"vllm.sleep stops all calls while the trainer computes; loop={loop} needs them: set loop=sync"
            )


def check_name(name: str) -> str:
    """Return `name`; raises RunError if it cannot be the name of a run folder."""
    if not NAME.fullmatch(name):
        raise RunError(f"run name {name!r} must match {NAME.pattern}")
    return name


def endpoint_name(config: RunConfig) -> str | None:
    """Return the model or base URL that answers the agents of a run without a policy; None for other runs."""
    endpoint = config.endpoint
    return None if endpoint is None else endpoint.name


def check_prompt_name(name: str) -> None:
    """Raise UsageError if `name` cannot be the name of a resource: the files of exported prompts are called so."""
    if not NAME.fullmatch(name):
        raise UsageError(f"the name {name!r} of a prompt or another resource must match {NAME.pattern}")


_IN_CLEAR = (
    "name",
    "experiment",
    "agent_match",
    "span_match",
    "attribute_match",
    "routes",
    "provider",
    "endpoint",
    "prompts",
    "prompt_edits",
)
"""Fields that a run needs unmasked."""


def check_in_clear(config: RunConfig) -> None:
    """Raise UsageError if a name or a pattern holds a secret.

    `config.yaml` would contain the masked text, and could then not be loaded.
    """
    for field in _IN_CLEAR:

        def check(text: str, field: str = field) -> str:
            if (masked := mask_text(text)) != text:
                raise UsageError(
                    f"{field} seems to contain a secret ({masked!r}), and would be written to config.yaml unmasked: "
                    "change it"
                )
            return text

        mask_values(msgspec.to_builtins(getattr(config, field)), check)


def save_config(config: RunConfig, path: Path) -> None:
    """Write `config` as YAML, atomically and with secrets masked. User names in URLs stay readable."""
    data: Any = mask_values(msgspec.to_builtins(config), _masked)
    if config.store is not None:
        data["store"] = recorded_uri(config.store)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    os.replace(temporary, path)


def _masked(text: str) -> str:
    return mask_text(PASSWORD_IN_URL.sub(rf"\1:{MASK}@", text))


def load_config(path: Path) -> RunConfig:
    """Return the configuration in the file `path`.

    Raises RunError if the file is missing or not a valid configuration.
    """
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), RunConfig)
    except FileNotFoundError:
        is_study = (path.parent / "study.json").is_file()
        trials = f"; it is a study of leyden tune, whose runs are named with --runs {path.parent}" if is_study else ""
        raise RunError(f"{path.parent} is not a run: it has no {path.name}{trials}") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise RunError(f"{path} cannot be read: {first_line(error)}") from None
