"""`RunConfig`: everything that decides how a run goes, as one frozen struct that rests in `config.yaml`."""

import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from leyden.core.data.bounds import BOUNDS, check_bound
from leyden.core.data.isolation import Isolation
from leyden.core.data.route import POLICY, PROVIDER, Route
from leyden.core.data.sampling import Sampling
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.errors import RunError, UsageError
from leyden.core.gateway.calls.span_writer import KeeperLimits
from leyden.core.masking import MASK, PASSWORD_IN_URL, mask_text, mask_values
from leyden.core.policy.device import check_device_name
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.trainer.agents.placement import Runners
from leyden.core.trainer.monitoring.trackers import tracker_names
from leyden.core.trajectory.select import Selector

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPTION = {"timeout_seconds": "timeout"}
"""What a field is called as an option, where that is another name."""


class EvaluationSet(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out set of tasks: its name in reports and where its rows came from."""

    name: str
    source: str


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run goes. Defaults are the tested setting."""

    name: str
    experiment: str | None = None
    """Name of the set of runs that it is compared with."""
    policy: str | dict[str, str]
    """Folder or hub name of a Hugging Face causal language model; or several, by their names, each with weights of its
    own: routes then say which calls go to which."""
    agent: AgentReference | None = None
    """Import string `path.py:attribute` or `module:attribute`, or the words of a command line; for a live object, a
    description of it. None where nothing runs: what is learned was collected elsewhere, and nothing is evaluated."""
    reward: str | None = None
    """Import string of the reward function; None when the agent itself returns or emits its rewards."""
    reward_weights: dict[str, float] = {}
    """Weight of each of the reward's dimensions; none given: each weighs 1."""
    input: str | None = None
    """Import string of a function from a task row to the agent's input; None when the adapter tells it from the row."""
    hooks: tuple[str, ...] = ()
    """Import strings of `Hook` objects or classes."""
    env: tuple[str, ...] = ()
    """Names of variables that hold secrets and that a command gets all the same."""
    tasks: str = ""
    """Where the training tasks came from; their rows are kept in the run folder."""
    held_out: tuple[EvaluationSet, ...] = ()
    """The first is the one in the report's headline."""
    steps: int = 25
    """Weight updates to take."""
    tasks_per_step: int = 16
    group_size: int = 8
    """Rollouts of each task; the group's mean is the baseline."""
    seed: int = 0
    sampling: Sampling = Sampling()
    """Overrides the agent's own in training."""
    agent_match: str | None = None
    """Regular expression over agent or node name; calls of other agents are answered but not trained."""
    span_match: str | None = None
    """Regular expression over the names of a call's span and of the spans above it; narrows further, as do the next."""
    attribute_match: dict[str, str] = {}
    """Attribute name to a regular expression over its value on a call's span or on one above it."""
    predicate: str | None = None
    """Import string of a function of a call's span and the spans above it."""
    workers: int = 1
    """Agent processes."""
    concurrency: int = 64
    """Rollouts at once in each agent process."""
    isolation: Isolation = "auto"
    """Whether rollouts share their agent process or have one each."""
    runners: Runners = Runners()
    """Where the agent processes run."""
    timeout_seconds: float = 120.0
    """Limit of one attempt."""
    max_attempts: int = 2
    """Tries for a rollout whose attempt timed out or lost its worker; an agent that raises is not tried again."""
    evaluate_sampled: bool = True
    """Evaluate with the training sampling too, beside the agent's own."""
    eval_every: int = 0
    """Steps between evaluations; the best version is then kept. 0: before the first step and after the last alone."""
    patience: int | None = None
    """Evaluations in a row without a noticeable rise before the run stops early; None never does."""
    check: bool = True
    """Prove on the first batch that the run can learn, before it does."""
    checkpoint_every: int = 1
    keep_checkpoints: int = 2
    engine: Literal["embedded", "vllm"] = "embedded"
    """What serves the policies: this process, or a vLLM server for each."""
    vllm: VllmOptions = VllmOptions()
    """How vLLM's servers are started."""
    device: str = "cpu"
    """Where policy and engine live: `cpu`, or `cuda` for one GPU."""
    threads: int | None = None
    """Torch threads of the engine; None chooses by the size of the policy."""
    deterministic: bool = False
    """The same seed gives the same rollouts and weights, bit for bit; the engine then decodes one call at a time."""
    tracker: tuple[str, ...] | str | None = None
    """Where else the numbers of the steps go."""
    algorithm: str = "lightning_rl"
    """Name of a registered algorithm, or an import string."""
    algorithm_config: dict[str, Any] = {}
    routes: tuple[Route, ...] = ()
    """Which model calls go where; the first that fits decides, and a call that none fits goes to the policy."""
    frozen: dict[str, str] = {}
    """Further policies that routes may name: name to folder or hub name. They answer, and never learn."""
    sides: tuple[str, ...] = ()
    """Names of the policies of an algorithm that trains several side by side: each begins as `policy`."""
    acting: tuple[str, ...] = ()
    """Those of the sides that answer training rollouts, in turn where there are several."""
    update: Literal["swap", "drain"] = "swap"
    """How new weights meet calls in flight: between two of their tokens, or after their end, while others wait."""
    record_within: float = 0.0
    """Seconds, at most 2, that the record of a call may wait to be stored; 0 stores it before its answer ends."""
    engine_log: bool = False
    """Write the engine's own record of every call to `engine.jsonl` in the run folder."""

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
        for name, weight in self.reward_weights.items():
            check_bound("reward_weight", weight, f"the weight of reward dimension {name!r}")
        Selector(agent_match=self.agent_match, span_match=self.span_match, attribute_match=self.attribute_match)
        self._check_routes()
        KeeperLimits(within=self.record_within)
        tracker_names(self.tracker)
        self._check_evaluation()
        self._check_deterministic()
        self._check_engine()
        if not self.sampling.trainable:
            raise UsageError("training needs a temperature above 0 and top-p 1: other tokens cannot be learned from")

    @property
    def policies(self) -> dict[str, str]:
        """The policies that are trained, by their names; the only one's, where it was given none, is `policy`."""
        if isinstance(self.policy, str):
            return dict.fromkeys(self.sides or (POLICY,), self.policy)
        return self.policy

    @property
    def answering(self) -> tuple[str, ...]:
        """Those of them that answer training rollouts."""
        return self.acting or tuple(self.policies)

    @property
    def off_policy(self) -> tuple[str, ...]:
        """Those of them that learn from calls which another answered."""
        return tuple(side for side in self.sides if self.acting != (side,))

    @property
    def has_names(self) -> bool:
        """Whether policies have names that were given: each has a folder of its name, wherever policies are kept."""
        return bool(self.sides) or not isinstance(self.policy, str)

    @property
    def usual(self) -> str:
        """The policy of calls that come straight to the gateway, or that no route fits."""
        if self.sides:
            return self.acting[0]
        names = self.policies
        ends = [route.to for route in self.routes if route.fits_all and route.to in names]
        return POLICY if POLICY in names else next(iter([*ends, *names]))

    def _check_routes(self) -> None:
        names = self.policies
        if not names:
            raise UsageError("no policy is given: name one, as --policy NAME=FOLDER or with the folder alone")
        for name in names.keys() | self.frozen.keys():
            if name == PROVIDER or (name == POLICY and name in self.frozen):
                raise UsageError(f"a policy cannot be called {name!r}: that name has a meaning of its own")
            if name in names and name in self.frozen:
                raise UsageError(f"policy {name!r} is both trained and frozen; give it once")
            if name in names and (not NAME.fullmatch(name) or name.endswith("-adapter")):
                raise UsageError(f"policy name {name!r} must match {NAME.pattern}, and not end in -adapter")
        self._check_sides()
        known = (*(names if not self.sides else (POLICY,)), PROVIDER, *self.frozen)
        for route in self.routes:
            if route.to not in known:
                said = f"a route goes to {route.to!r}, and there is only {', '.join(known)}"
                raise UsageError(f"{said}; name it with --policy or --frozen")
        if self.sides:
            return  # the rollout says which of them answers it
        if POLICY not in names and not any(route.fits_all for route in self.routes):
            raise UsageError(
                "a call that no route fits would reach no policy: end with --route to=NAME, "
                f"or call one of {', '.join(names)} {POLICY!r}"
            )
        self._check_reached()

    def _check_sides(self) -> None:
        if self.sides and not isinstance(self.policy, str):
            raise UsageError(
                f"{self.algorithm} trains policies of its own, {' and '.join(self.sides)}, which begin as one: give "
                f"--policy FOLDER once, without a name, not {', '.join(self.policy)}"
            )
        if not set(self.acting) <= set(self.sides) or (self.sides and not self.acting):
            raise UsageError(f"of the sides {', '.join(self.sides)}, at least one must be acting, and no other")

    def _check_reached(self) -> None:
        last = next((at for at, route in enumerate(self.routes) if route.fits_all), None)
        tried = self.routes if last is None else self.routes[: last + 1]
        reached = {route.to for route in tried} | ({POLICY} if last is None else set[str]())
        for name in self.policies:
            if self.has_names and name not in reached:
                raise UsageError(f"no route reaches policy {name!r}: give --route agent=...,to={name}, or leave it out")

    def _check_evaluation(self) -> None:
        if self.eval_every and not self.held_out:
            raise UsageError("eval-every has no effect without held-out tasks; give some with --val")
        if self.patience is None:
            return
        if self.patience < 1:
            raise UsageError(f"patience must be at least 1, got {self.patience}")
        if not self.eval_every:
            raise UsageError("patience has no effect without eval-every, which says how often it is tried")

    def _check_deterministic(self) -> None:
        loop = self.algorithm_config.get("loop", "sync")
        if not self.deterministic:
            return
        if self.threads not in (None, 1):
            raise UsageError(f"a deterministic run computes on one thread; leave out --threads {self.threads}")
        if loop == "async":
            raise UsageError(
                "a deterministic run cannot have loop async: there it depends on the time an update takes which "
                "weights answer a call; set loop=one_off or loop=sync"
            )

    def _check_engine(self) -> None:
        check_device_name(self.device)
        if self.engine == "embedded":
            if self.vllm != VllmOptions():
                raise UsageError("options of vLLM have no effect without --engine vllm")
            return
        if self.deterministic:
            raise UsageError("a deterministic run needs --engine embedded: vLLM rounds as its batches fall")
        if self.vllm.transfer == "ipc" and self.device == "cpu":
            raise UsageError("vllm.transfer=ipc shares a GPU's memory, and device is cpu")
        self._check_sleep()
        if self.threads is not None:
            raise UsageError(f"threads are those of the embedded engine; with --engine vllm leave out {self.threads}")

    def _check_sleep(self) -> None:
        if not self.vllm.sleep:
            return
        if self.device == "cpu":
            raise UsageError("vllm.sleep leaves a GPU's memory to the trainer, and device is cpu")
        if (loop := self.algorithm_config.get("loop", "sync")) != "sync":
            raise UsageError(
                f"vllm.sleep stops all calls while the trainer computes; loop={loop} needs them: set loop=sync"
            )


def check_name(name: str) -> str:
    """Return `name`, or raise RunError when it cannot name a run folder."""
    if not NAME.fullmatch(name):
        raise RunError(f"run name {name!r} must match {NAME.pattern}")
    return name


_IN_CLEAR = ("name", "experiment", "agent_match", "span_match", "attribute_match", "routes")
"""What a run needs as it was given."""


def check_in_clear(config: RunConfig) -> None:
    """Raise UsageError where a name or a pattern holds a secret: `config.yaml` keeps none, and could not be read."""
    for field in _IN_CLEAR:

        def check(text: str, field: str = field) -> str:
            if (masked := mask_text(text)) != text:
                raise UsageError(f"{field} holds what looks like a secret ({masked!r}), and is kept as it is")
            return text

        mask_values(msgspec.to_builtins(getattr(config, field)), check)


def save_config(config: RunConfig, path: Path) -> None:
    """Write `config` as YAML, atomically, with secrets masked; of a URL the user's name stays."""
    data: Any = mask_values(msgspec.to_builtins(config), _masked)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    os.replace(temporary, path)


def _masked(text: str) -> str:
    return mask_text(PASSWORD_IN_URL.sub(rf"\1:{MASK}@", text))


def load_config(path: Path) -> RunConfig:
    """Read what `save_config` wrote; raises RunError when it is missing or not a run's."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), RunConfig)
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run: it has no {path.name}") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
