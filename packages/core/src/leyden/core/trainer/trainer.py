"""Python interface of training: `Trainer` offers what `leyden train` and `leyden dev` do."""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.lightning_rl import LightningRL
from leyden.core.data.isolation import Isolation, check_isolation
from leyden.core.data.resources import LLM, NamedResources, edits_of, prompts_of
from leyden.core.data.rollout import Task
from leyden.core.data.route import parse_routes
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EnginePrecision
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.errors import UsageError
from leyden.core.policy.device import check_device
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.argument_types import check_types
from leyden.core.trainer.config import EvaluationSet, RunConfig, check_name
from leyden.core.trainer.launch import (
    CheckFunction,
    ResumeChanges,
    SessionFunction,
    begin,
    check_here,
    check_run,
    resume,
    train_here,
)
from leyden.core.trainer.monitoring.display import make_display
from leyden.core.trainer.monitoring.trackers import tracker_names
from leyden.core.trainer.preflight.report import CheckReport
from leyden.core.trainer.rollouts.selection import Selection, read_selection
from leyden.core.trainer.rollouts.tasks import given_tasks, load_tasks
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.sharing.store_location import VARIABLE, remember_store, settled_uri
from leyden.core.trainer.serving.endpoint import KEY, ModelEndpoint, openai_endpoint, untrained
from leyden.core.trainer.serving.given_keys import give_keys
from leyden.core.trainer.serving.provider import read_provider
from leyden.core.trajectory.trace_to_messages import TraceToMessages

if TYPE_CHECKING:
    from leyden.core.runner.attempts.hooks import Hook
    from leyden.core.runner.user_code.loaded_agent import LoadedAgent
    from leyden.core.store.base import LightningStore
    from leyden.core.trainer.rollouts.recorded import RecordedRollout

log = logging.getLogger(__name__)

TaskRows = Iterable[Task] | str | Path
"""Tasks themselves, or a source of tasks as `leyden train --tasks` takes it."""
RewardFunction = Callable[..., Any]
InputFunction = Callable[[Task], Any]
StartStore = Callable[[], str | None]


class Trainer:
    """Trains the model inside an agent.

    `fit` accepts the framework's own agent object, a `LitAgent`, a function of a task, or an import string. With an
    import string, the agent runs in `n_workers` processes, at the place that `runners` defines. A live object runs in
    the calling process, and learning runs in a spawned process.

    Args:
        algorithm: Algorithm that trains; `LightningRL` by default.
        steps: Number of steps; by default what the algorithm names, else 25. The same is true of `timeout_seconds`,
            the time limit of an attempt, and 120.
        adapter: Older name of `select`. `TraceToMessages()` of the original selects every call.
        max_workers: Largest number of processes of an agent given by import string. Their number then follows the
            load, between `n_workers` and this. By default it does not change.
        policy: Model to train, or several by name. `routes` then maps calls to them.
        isolation: "auto" runs rollouts in forked processes of their own if they would share mutable state;
            "process" always forks, "shared" never does.
        reward_weights: Weight of each reward dimension.
        input: Function from a task to the agent's input, for tasks that the adapter cannot convert itself.
        hooks: Hooks that run around every attempt. `input`, `hooks` and the reward are objects or import strings;
            with an agent given as import string they must be import strings.
        provider: Base URL of the endpoint that answers a program's requests besides model calls, such as those for
            embeddings. `provider_key_env` names the environment variable with its key.
        initial_resources: What the agent runs with: prompt templates, prompt edits, and LLMs, whose endpoint becomes
            the run's. With an algorithm that trains no weights, the endpoint of the first LLM answers the agent.
            Without one, the endpoint of OPENAI_BASE_URL does, or OpenAI's, with the key in OPENAI_API_KEY.
        engine: "vllm" serves the policies with vLLM servers, which use the options in `vllm`.
        store: Store that keeps the rollouts, which several runs may share: a URI or a store object. By default, the
            run's folder has a store of its own. `resume` needs the same store object, or the URI with its password.
        artifacts: Folder or URL that gets a copy of the run's folder after every step.
        device: Device on which policies are trained and served, `cpu` or `cuda`. The default is the CPU; for
            `resume` it is the device of the run.
    """

    def __init__(  # noqa: PLR0913 -- the keywords of Agent Lightning's Trainer, so that tutorials run unchanged
        self,
        *,
        algorithm: Algorithm | None = None,
        policy: str | Path | Mapping[str, str | Path] | None = None,
        n_runners: int = 64,
        n_workers: int = 1,
        max_workers: int | None = None,
        isolation: Isolation = "auto",
        runners: RunnerPlacement | None = None,
        select: Mapping[str, Any] | None = None,
        adapter: Mapping[str, Any] | TraceToMessages | None = None,
        reward_weights: Mapping[str, float] | None = None,
        input: "InputFunction | str | None" = None,
        hooks: "Sequence[Hook | type[Hook] | str]" = (),
        initial_resources: NamedResources | None = None,
        name: str | None = None,
        experiment: str | None = None,
        steps: int | None = None,
        tasks_per_step: int = 16,
        group_size: int = 8,
        seed: int = 0,
        sampling: Sampling | None = None,
        timeout_seconds: float | None = None,
        routes: Sequence[str] = (),
        provider: str | None = None,
        provider_key_env: str | None = None,
        frozen: Mapping[str, str | Path] | None = None,
        update: Literal["swap", "drain"] = "swap",
        record_within: float = 0.0,
        deterministic: bool = False,
        engine: Literal["embedded", "vllm"] = "embedded",
        vllm: VllmOptions | None = None,
        device: str | None = None,
        threads: int | None = None,
        engine_precision: EnginePrecision = "float32",
        checkpoint_every: int = 1,
        keep_checkpoints: int = 2,
        eval_every: int = 0,
        patience: int | None = None,
        store: "str | LightningStore | None" = None,
        artifacts: str | Path | None = None,
        tracker: str | Sequence[str] | None = None,
        check: bool = True,
        runs: str | Path = "runs",
        quiet: bool = False,
    ) -> None:
        counts = {"n_runners": n_runners, "n_workers": n_workers, "max_workers": max_workers, "steps": steps}
        counts |= {"tasks_per_step": tasks_per_step, "group_size": group_size, "seed": seed, "threads": threads}
        check_types(algorithm, initial_resources, counts)
        self.algorithm = algorithm or LightningRL()
        self.policy = _sources(policy)
        self.n_runners, self.n_workers, self.max_workers = n_runners, n_workers, max_workers
        self.isolation: Isolation = check_isolation(isolation)
        self.runners = runners or RunnerPlacement()
        self.selection = _selection(select, adapter)
        self.reward_weights = dict(reward_weights or {})
        self.input, self.hooks = input, tuple(hooks)
        self.initial_resources = initial_resources or {}
        self.name, self.experiment, self.runs = name, experiment, Path(runs)
        defaults = self.algorithm.run_defaults
        self.steps, self.seed = defaults.steps if steps is None else steps, seed
        self.tasks_per_step, self.group_size = tasks_per_step, group_size
        self.sampling = sampling or Sampling()
        self.timeout_seconds = defaults.timeout_seconds if timeout_seconds is None else timeout_seconds
        self.routes = parse_routes(routes)
        self.provider = read_provider(provider, provider_key_env)
        self.frozen = {name: str(source) for name, source in (frozen or {}).items()}
        self.update: Literal["swap", "drain"] = update
        self.record_within = record_within
        self.deterministic = deterministic
        self.engine: Literal["embedded", "vllm"] = engine
        self.vllm = vllm or VllmOptions()
        self.device, self.threads = device, threads
        self.engine_precision: EnginePrecision = engine_precision
        self.checkpoint_every, self.keep_checkpoints = checkpoint_every, keep_checkpoints
        self.eval_every, self.patience = eval_every, patience
        self.store, self.artifacts = store, None if artifacts is None else str(artifacts)
        self.tracker = tracker_names(tracker)
        self.checks_first = check
        self.quiet = quiet

    def fit(
        self,
        agent: Any = None,
        train_dataset: TaskRows | None = None,
        val_dataset: TaskRows | None = None,
        reward: RewardFunction | str | None = None,
    ) -> RunReport:
        """Train on `train_dataset`, evaluate on `val_dataset`, and return the run's report.

        `reward(task, result)` returns the score of the agent's result; a `LitAgent` returns or emits its own rewards.
        An algorithm that learns from spans of another run takes no `train_dataset`. It takes an agent only for
        evaluation. Raises UsageError, with a message of one line, for arguments that cannot work.
        """
        config, tasks, held_out = self._prepared(agent, train_dataset, val_dataset, reward)
        with self._serving_store() as start_store:
            return self._ended(
                begin(self.runs, config, tasks, held_out, self._session_function(agent, reward, start_store))
            )

    def planned(
        self,
        agent: Any = None,
        train_dataset: TaskRows | None = None,
        val_dataset: TaskRows | None = None,
        reward: str | None = None,
    ) -> "tuple[RunConfig, list[Task], dict[str, list[Task]]]":
        """Return configuration, training tasks and held-out tasks with which `fit` would begin, for another process.

        Raises UsageError for what no other process can load, such as a live agent.
        """
        if agent is not None and not isinstance(agent, str):
            raise UsageError("a run of another process needs an agent given by import string, as file.py:agent")
        self._check_importable(reward)
        if self.store is not None and not isinstance(self.store, str):
            raise UsageError("a run of another process cannot use a store object of this one: give the store's URI")
        for name in (name for name, one in self.initial_resources.items() if isinstance(one, LLM) and one.api_key):
            raise UsageError(f"the key of {name} in initial_resources stays in this process: set it where the run is")
        return self._prepared(agent, train_dataset, val_dataset, reward)

    def _prepared(
        self,
        agent: Any,
        train_dataset: TaskRows | None,
        val_dataset: TaskRows | None,
        reward: RewardFunction | str | None,
    ) -> "tuple[RunConfig, list[Task], dict[str, list[Task]]]":
        tasks = task_rows(train_dataset or ())
        held_out = {} if val_dataset is None else {"val": task_rows(val_dataset)}
        config = self._config(agent, reward, held_out)
        return msgspec.structs.replace(config, **_read_from(train_dataset, val_dataset)), tasks, held_out

    def resume(self, agent: Any, name: str, reward: RewardFunction | str | None = None) -> RunReport:
        """Resume the run `name` after its last checkpoint and return its report."""
        changes = ResumeChanges(device=self.device, store=self.store if isinstance(self.store, str) else None)
        is_object = agent is not None and not isinstance(agent, str)
        with self._serving_store() as start_store:
            session = self._session_function(agent, reward, start_store)
            return self._ended(resume(self.runs, name, session, changes, has_agent=is_object))

    def _ended(self, report: RunReport) -> RunReport:
        """Give the algorithm the prompts of the kept version, and return the report."""
        if self.algorithm.trains_prompts:
            kept = prompts_of(self.initial_resources)
            changed = {name: one.text for name, one in report.prompts.items() if name in kept}
            new = {name: msgspec.structs.replace(kept[name], template=text) for name, text in changed.items()}
            self.algorithm.kept_prompts = {**kept, **new}
        return report

    def check(self, agent: Any, dataset: TaskRows, reward: RewardFunction | str | None = None) -> CheckReport:
        """Check on a few rollouts of `dataset` that `fit` would learn from it, and return the check's report.

        Files stay only if the check fails or rollouts fail. `fit` runs the same check on its first batch, unless
        `check=False`. Raises UsageError for arguments that cannot work.
        """
        config = self._config(agent, reward, ("val",) if self.eval_every else ())
        with self._serving_store() as start_store:
            return check_run(self.runs, config, task_rows(dataset), self._check_function(agent, reward, start_store))

    def dev(
        self, agent: Any, dev_dataset: TaskRows, reward: RewardFunction | str | None = None
    ) -> "list[RecordedRollout]":
        """Run the agent on `dev_dataset` without training, print every span, and return the recorded rollouts.

        The policy answers the agent's calls. Without a policy, the endpoint of an LLM among `initial_resources` does.
        """
        from leyden.core.trainer.services.dev import DevPlan, dry_run

        device = self.device or "cpu"
        check_device(device)
        plan = DevPlan(
            policy=self._answering(),
            device=device,
            resources=self.initial_resources,
            provider=self.provider,
            concurrency=self.n_runners,
            isolation=self.isolation,
            timeout_seconds=self.timeout_seconds,
            input=self.input,
            hooks=self.hooks,
        )
        if isinstance(agent, str):
            self._check_importable(reward)
        return dry_run(plan, agent, task_rows(dev_dataset), reward, show=not self.quiet)

    def _answering(self) -> str | None:
        """The single policy of a dry run. Raises UsageError if several policies were given."""
        if isinstance(self.policy, dict):
            raise UsageError(
                "dev answers with one policy, and Trainer(policy=...) has several: give the one to look at"
            )
        return self.policy

    @contextmanager
    def _serving_store(self) -> Generator[StartStore]:
        """Context manager: lets other processes of a run use a store object.

        Yields a function that starts this, and returns the URI of the run's store. An agent of this process must be
        ready before, because its processes cannot be forked beside the server's thread.
        """
        if self.store is None or isinstance(self.store, str):
            uri = None if self.store is None else settled_uri(self.store)
            yield lambda: uri
            return
        from leyden.core.trainer.services.live_store import described, served

        given, started = self.store, list[str]()
        with ExitStack() as closing:

            def start() -> str:
                if not started:
                    started.append(closing.enter_context(served(given)))
                    remember_store(started[0], described(given))
                return started[0]

            yield start

    def _session_function(
        self, agent: Any, reward: RewardFunction | str | None, start_store: StartStore
    ) -> SessionFunction:
        if agent is None or isinstance(agent, str):
            start_store()
            self._check_importable(reward)
            give_keys(self.algorithm.keys)
            return train_here(make_display(quiet=self.quiet), self.initial_resources)

        def run_session(folder: RunFolder, config: RunConfig) -> RunReport:
            from leyden.core.trainer.agents.live import train_with_live_agent

            loaded, shown = self._loaded(agent, reward, folder, config), "quiet" if self.quiet else "bars"
            return train_with_live_agent(folder, config, loaded, shown, lambda: self._keys(start_store()))

        return run_session

    def _check_function(
        self, agent: Any, reward: RewardFunction | str | None, start_store: StartStore
    ) -> CheckFunction:
        if isinstance(agent, str):
            start_store()
            self._check_importable(reward)
            give_keys(self.algorithm.keys)
            return check_here(make_display(quiet=self.quiet), self.initial_resources)

        def run_check(folder: RunFolder, config: RunConfig) -> CheckReport:
            from leyden.core.trainer.agents.live import check_with_live_agent

            loaded, shown = self._loaded(agent, reward, folder, config), "quiet" if self.quiet else "bars"
            return check_with_live_agent(folder, config, loaded, shown, lambda: self._keys(start_store()))

        return run_check

    def _loaded(
        self, agent: Any, reward: RewardFunction | str | None, folder: RunFolder, config: RunConfig
    ) -> "LoadedAgent":
        """A live agent for a run; what it runs with is saved in the run's folder."""
        from leyden.core.runner.user_code.loaded_agent import LoadedAgent

        weights = config.reward_weights
        loaded = LoadedAgent.of(agent, reward, reward_weights=weights, input=self.input, hooks=self.hooks)
        loaded.check_tasks(folder.task_examples(config))
        folder.save_resources(self.initial_resources)
        return loaded

    def _endpoint(self) -> ModelEndpoint:
        """The endpoint that answers the agents of a run without a policy."""
        if (llm := self._llm()) is not None:
            return ModelEndpoint.of(llm)
        if (own := openai_endpoint()) is not None:
            log.warning("no LLM is among initial_resources: %s answers the agent", own.url)
            return own
        raise UsageError(
            f"{self.algorithm.name} trains no weights: Trainer(initial_resources={{'main_llm': LLM(endpoint=..., "
            "model=...)}) names the model that answers the agent, or OPENAI_API_KEY holds the key of its own provider"
        )

    def _llm(self) -> LLM | None:
        return next((one for one in self.initial_resources.values() if isinstance(one, LLM)), None)

    def _keys(self, store: str | None) -> dict[str, str]:
        """Keys, and the URI of the store, that were given in Python, by the variables of the learner process."""
        llm = None if self.algorithm.needs_policy else self._llm()
        keys = {} if llm is None or llm.api_key is None else {KEY: llm.api_key}
        return {**self.algorithm.keys, **keys, **({} if store is None else {VARIABLE: store})}

    def _named_store(self) -> str | None:
        """The store as `config.yaml` names it."""
        if self.store is None or isinstance(self.store, str):
            return self.store
        from leyden.core.trainer.services.live_store import described

        return described(self.store)

    def _most_workers(self, agent: Any) -> int | None:
        if self.max_workers is not None and not isinstance(agent, str):
            raise UsageError("max_workers needs an agent given by import string: a live object runs in this process")
        return self.max_workers

    def _where(self, agent: Any) -> RunnerPlacement:
        if self.runners.where != "local" and not isinstance(agent, str):
            raise UsageError(f"runners {self.runners.where} need an agent given by import string, as file.py:agent")
        return self.runners

    def _check_importable(self, reward: RewardFunction | str | None) -> None:
        for what, given in (("reward", reward), ("input", self.input), *(("hooks", hook) for hook in self.hooks)):
            if given is not None and not isinstance(given, str):
                raise UsageError(f"an agent given by import string runs in other processes: give the {what} so too")

    def _config(self, agent: Any, reward: RewardFunction | str | None, held_out: Iterable[str] = ()) -> RunConfig:
        import time

        policy = self.algorithm.named_policy if self.policy is None else self.policy
        if policy is None and self.algorithm.needs_policy:
            raise UsageError("Trainer(policy=...) names the Hugging Face model to train: a folder or a hub name")
        own = untrained(policy, self._llm(), type(self.algorithm))
        return RunConfig(
            name=check_name(self.name or f"run-{time.strftime('%m%d-%H%M%S')}"),
            experiment=self.experiment,
            agent=_described(agent),
            policy=None if own is not None else policy,
            endpoint=own or (None if policy is not None else self._endpoint()),
            prompts=prompts_of(self.initial_resources),
            prompt_edits=edits_of(self.initial_resources),
            reward=_named(reward),
            reward_weights=self.reward_weights,
            input=_named(self.input),
            hooks=tuple(hook for hook in self.hooks if isinstance(hook, str)),
            tasks="train_dataset" if self.algorithm.needs_rollouts else "",
            steps=self.steps,
            tasks_per_step=self.tasks_per_step,
            group_size=self.group_size,
            seed=self.seed,
            sampling=self.sampling,
            **self.selection,
            workers=self.n_workers,
            max_workers=self._most_workers(agent),
            concurrency=self.n_runners,
            isolation=self.isolation,
            runners=self._where(agent),
            timeout_seconds=self.timeout_seconds,
            check=self.checks_first,
            routes=self.routes,
            provider=self.provider,
            frozen=self.frozen,
            update=self.update,
            record_within=self.record_within,
            deterministic=self.deterministic,
            engine=self.engine,
            vllm=self.vllm,
            device=self.device or "cpu",
            threads=self.threads,
            engine_precision=self.engine_precision,
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep_checkpoints,
            held_out=tuple(EvaluationSet(name=name, source="val_dataset") for name in held_out),
            eval_every=self.eval_every,
            patience=self.patience,
            store=self._named_store(),
            artifacts=self.artifacts,
            tracker=self.tracker,
            algorithm=self.algorithm.reference(),
            algorithm_config=self.algorithm.settings(),
        )


def task_rows(dataset: TaskRows) -> list[Task]:
    """Return tasks as agents receive them; reads them from a source."""
    return load_tasks(dataset) if isinstance(dataset, str | Path) else given_tasks(dataset)


def _read_from(training: TaskRows | None, held_out: TaskRows | None) -> dict[str, Any]:
    """Return the fields of `RunConfig` for tasks that were read from a source."""
    found: dict[str, Any] = {}
    if isinstance(training, str | Path):
        found["tasks"] = str(training)
    if isinstance(held_out, str | Path):
        found["held_out"] = (EvaluationSet(name="val", source=str(held_out)),)
    return found


def _sources(policy: str | Path | Mapping[str, str | Path] | None) -> str | dict[str, str] | None:
    if isinstance(policy, Mapping):
        return {name: str(source) for name, source in policy.items()}
    return None if policy is None else str(policy)


def _described(agent: Any) -> str | None:
    """Return an import string as it is; for a live object, a description of its type; None without an agent."""
    if agent is None or isinstance(agent, str):
        return agent
    return f"<{type(agent).__module__}.{type(agent).__qualname__}>"


def _named(given: object) -> str | None:
    """Return an import string for `config.yaml`; None for a live object."""
    return given if isinstance(given, str) else None


def _selection(select: Mapping[str, Any] | None, adapter: "Mapping[str, Any] | TraceToMessages | None") -> Selection:
    if isinstance(adapter, TraceToMessages):
        return read_selection(select or {})  # it selects every call
    if select is not None and adapter is not None:
        raise UsageError("give select= or its older name adapter=, not both")
    return read_selection(select or adapter or {})
