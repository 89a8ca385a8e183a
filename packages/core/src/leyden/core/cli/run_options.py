"""Run options: the common options of `leyden train` and `leyden check`, and their conversion into a `RunConfig`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
import typer

from leyden.core.cli.command import given_command
from leyden.core.cli.options import (
    RUNS,
    TASK_SOURCES,
    AllowHostOption,
    ApiKeyEnvOption,
    DeviceOption,
    EndpointOption,
    EnvOption,
    ExperimentOption,
    HookOption,
    InputOption,
    IsolationOption,
    JsonOption,
    ModelOption,
    NameOption,
    ProviderKeyEnvOption,
    ProviderOption,
    QuietOption,
    RunsOption,
    SeedOption,
    TimeoutOption,
    chosen_agent,
    default_name,
    held_out_name,
    read_attribute_match,
    read_engine,
    read_engine_precision,
    read_env,
    read_frozen,
    read_held_out,
    read_policies,
    read_prompt_edits,
    read_prompt_templates,
    read_reward_weights,
    read_settings,
    read_update,
    read_yaml,
)
from leyden.core.data.isolation import check_isolation
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.runner.user_code.loading import AgentReference
    from leyden.core.trainer.config import RunConfig
    from leyden.core.trainer.launch import ResumeChanges

USUAL, VERL = "lightning_rl", "verl"
RESUMED = (
    *("resume", "steps", "device", "ray_address", "set_", "store", "runs", "quiet", "json"),
    *("server", "memory", "cores", "detach", "insecure"),
)
"""Options of `leyden train` that are allowed together with `--resume`."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "reward_weights": ("reward_weight",),
    "hooks": ("hook",),
    "held_out": ("val",),
    "timeout_seconds": ("timeout",),
    "evaluate_sampled": ("sampled_eval",),
    "algorithm": ("algorithm", "backend"),
    "routes": ("route",),
    "provider": ("provider", "provider_key_env"),
    "endpoint": ("endpoint", "model", "api_key_env"),
    "prompts": ("prompt",),
    "prompt_edits": ("prompts",),
}
"""Options of the fields of `RunConfig` whose option has another name."""
_WITH_RESUME = "give only --steps, --device, --ray-address, --set, --store, --runs, --quiet and --json with it"
AgentArgument = Annotated[str | None, typer.Argument(help="path/to/file.py:attribute or package.module:attribute")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Option values as given. Each field is an option of every command decorated with `takes_run`."""

    context: typer.Context
    agent: AgentArgument = None
    tasks: Annotated[str | None, typer.Option(metavar="SOURCE", help=f"Training tasks: {TASK_SOURCES}.")] = None
    val: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="Held-out tasks, as for --tasks; may be repeated.")
    ] = None
    reward: Annotated[str | None, typer.Option(help="Reward function `score(task, result)`, as file.py:score.")] = None
    reward_weight: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Weight of one of the reward's dimensions.")
    ] = None
    input: InputOption = None
    hook: HookOption = None
    env: EnvOption = None
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Hugging Face causal LM to train: folder or hub name; or NAME=FOLDER for each of several."),
    ] = None
    endpoint: EndpointOption = None
    model: ModelOption = None
    api_key_env: ApiKeyEnvOption = None
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Prompt template among the agent's resources; .j2 for Jinja."),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts of the agent, as `leyden prompts` writes them, with new texts."),
    ] = None
    name: NameOption = None
    experiment: ExperimentOption = None
    steps: Annotated[int | None, typer.Option(help="Weight updates to take; 0 only evaluates. [default: 25]")] = None
    seed: SeedOption = 0
    tasks_per_step: Annotated[int, typer.Option(help="Tasks drawn for each step.")] = 16
    group_size: Annotated[int, typer.Option(help="Rollouts of each task.")] = 8
    learning_rate: Annotated[float | None, typer.Option(help="The same as --set learning_rate=...")] = None
    temperature: Annotated[float, typer.Option(help="Sampling temperature in training; overrides the agent's own.")] = (
        1.0
    )
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer of a call in training; a shorter limit of the agent's holds."),
    ] = None
    agent_match: Annotated[
        str | None, typer.Option(help="Train only calls of agents or nodes whose name this regex finds.")
    ] = None
    span_match: Annotated[
        str | None, typer.Option(help="Train only calls in or below a span whose name this regex finds.")
    ] = None
    attribute_match: Annotated[
        list[str] | None, typer.Option(metavar="NAME=REGEX", help="As --span-match, but by an attribute of the span.")
    ] = None
    predicate: Annotated[
        str | None, typer.Option(help="As --span-match, but by a function `predicate(span, above)`, as file.py:name.")
    ] = None
    workers: Annotated[int, typer.Option(help="Agent processes; with --max-workers, the fewest.")] = 1
    max_workers: Annotated[
        int | None, typer.Option(help="Most agent processes; their number follows the load. [default: --workers]")
    ] = None
    concurrency: Annotated[int, typer.Option(help="Rollouts at once in each agent process.")] = 64
    isolation: IsolationOption = "auto"
    runners: Annotated[
        str, typer.Option(help="Where agent processes run: local, ray, or remote (`leyden run --server`).")
    ] = "local"
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster, or auto. [default: start one on this machine]")
    ] = None
    ray_actors: Annotated[
        int | None, typer.Option(help="Ray actors that the agent processes are divided among. [default: one per node]")
    ] = None
    ray_cpus: Annotated[float, typer.Option(help="CPUs that Ray sets aside for each agent process.")] = 1.0
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0
    advertise: Annotated[
        str | None,
        typer.Option(help="HOST[:PORT] or URL at which other machines reach the run. [default: its address]"),
    ] = None
    allow_host: AllowHostOption = None
    timeout: TimeoutOption = 120.0
    engine: Annotated[str, typer.Option(help="Engine that serves the policy: embedded or vllm.")] = "embedded"
    vllm: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of vLLM's server.")] = None
    device: DeviceOption = "cpu"
    threads: Annotated[int | None, typer.Option(help="Torch threads of the engine. [default: by size]")] = None
    engine_precision: Annotated[
        str, typer.Option(help="Precision of the served weights: float32, or, faster, bfloat16 or int8.")
    ] = "float32"
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same seed, same rollouts and weights, bit for bit; slower.")
    ] = False
    sampled_eval: Annotated[bool, typer.Option(help="Evaluate with the training sampling too.")] = True
    record_tokens: Annotated[
        bool, typer.Option(help="Keep what each step computed for every trained token, for the console.")
    ] = True
    eval_every: Annotated[int, typer.Option(help="Steps between evaluations on --val; keeps the best version.")] = 0
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many evaluations without improvement. [default: never]")
    ] = None
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 1
    keep_checkpoints: Annotated[
        int, typer.Option(help="Number of latest checkpoints to keep; a run can be rolled back to them.")
    ] = 2
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            envvar="LEYDEN_STORE",
            help="Keep rollouts in this store, which runs can share. [default: a file]",
        ),
    ] = None
    artifacts: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Copy the run's folder here after every step: a folder, or s3://bucket/path."),
    ] = None
    tracker: Annotated[
        list[str] | None, typer.Option(help="Also log to: tensorboard, wandb, mlflow; may be repeated.")
    ] = None
    algorithm: Annotated[str, typer.Option(help="A registered algorithm, or an import string.")] = USUAL
    backend: Annotated[str, typer.Option(help="torch, or verl for VERL on Ray, the same as --algorithm verl.")] = (
        "torch"
    )
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with settings, as in runs/NAME/config.yaml. With VERL: VERL's configuration."),
    ] = None
    set_: Annotated[list[str] | None, typer.Option("--set", help="Option of the algorithm, as key=value.")] = None
    route: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERNS", help="Where model calls go, for example agent=judge,to=provider."),
    ] = None
    provider: ProviderOption = None
    provider_key_env: ProviderKeyEnvOption = None
    frozen: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=POLICY", help="Policy that routes can name and that is not trained."),
    ] = None
    update: Annotated[
        str, typer.Option(help="When new weights take effect: swap between two tokens, or drain calls first.")
    ] = "swap"
    record_within: Annotated[
        float, typer.Option(help="Most seconds until a call's record is stored; 0: before its response ends.")
    ] = 0.0
    engine_log: Annotated[bool, typer.Option("--engine-log", help="Keep the engine's own record of calls.")] = False
    runs: RunsOption = RUNS
    quiet: QuietOption = False
    json: JsonOption = False

    def named_agent(self) -> "AgentReference | None":
        """Return the agent or command that was given; None if neither was."""
        return chosen_agent(self.agent, given_command(self.context))

    def read(self, *, here: bool = True) -> "tuple[RunConfig, list[Task], dict[str, list[Task]]]":
        """Return the run's configuration, its training tasks and its held-out sets. Raises UsageError with one line.

        `here` states that the run is trained on this machine.
        """
        from leyden.core.algorithm.registry import algorithm_class, make_algorithm
        from leyden.core.cli.run_file import run_config
        from leyden.core.trainer.config import check_name
        from leyden.core.trainer.rollouts.tasks import load_tasks
        from leyden.core.trainer.serving.endpoint import check_model, untrained

        fields = self._fields(here=here)
        kind = algorithm_class(fields["algorithm"])
        if (own := untrained(fields["policy"], fields["endpoint"], kind)) is not None:
            fields["policy"], fields["endpoint"] = None, msgspec.to_builtins(own)
        check_model(kind, policy=bool(fields["policy"]), endpoint=bool(fields["endpoint"]))
        if not kind.takes_batches and self.gives("tasks_per_step"):
            raise UsageError(f"--tasks-per-step has no effect: {kind.name} chooses its tasks itself; remove it")
        algorithm = make_algorithm(fields["algorithm"], fields["algorithm_config"])
        fields["policy"] = fields["policy"] or algorithm.named_policy
        collects, tasks, held_out = algorithm.needs_rollouts, fields["tasks"], fields["held_out"]
        needed = {
            "AGENT": fields["agent"] is not None or not (collects or held_out),
            "--tasks": tasks or not collects,
            "--policy": fields["policy"] or fields["endpoint"] or not algorithm.needs_policy,
            "--endpoint or --policy": fields["policy"] or fields["endpoint"] or algorithm.needs_policy,
        }
        missing = [name for name, is_given in needed.items() if not is_given]
        if missing:
            command = self.context.info_name
            raise UsageError(f"missing {', '.join(missing)}; see `leyden {command} --help`, or `leyden quickstart`")
        rows, sets = load_tasks(tasks) if tasks else [], read_held_out(held_out)
        fields["name"] = check_name(fields["name"] or default_name(fields["agent"] or fields["algorithm"]))
        return run_config(fields, self.run_file), rows, sets

    def changes(self) -> "ResumeChanges":
        """Return the changes to a resumed run. Raises UsageError, with one line, for an option that cannot change."""
        from leyden.core.trainer.launch import ResumeChanges

        if self.named_agent() is not None or self.tasks is not None:
            raise UsageError(f"--resume takes agent and tasks from the run; {_WITH_RESUME}")
        for name in self.context.params:
            if name not in RESUMED and self.gives(name):
                option = name.strip("_").replace("_", "-")
                raise UsageError(f"--{option} cannot change on --resume; {_WITH_RESUME}")
        device = self.device if self.gives("device") else None
        return ResumeChanges(
            steps=self.steps,
            device=device,
            ray_address=self.ray_address,
            settings=read_settings(self.set_ or []),
            store=self.store if self.is_on_command_line("store") else None,
        )

    @property
    def run_file(self) -> Path | None:
        """The run file that was given; with VERL, `--config` is VERL's own configuration."""
        return None if VERL in (self.backend, self.algorithm) else self.config

    def gives(self, *options: str) -> bool:
        """Whether the command line gives a value to one of these options."""
        sources = map(self.context.get_parameter_source, options)
        return any(source is not None and source.name != "DEFAULT" for source in sources)

    def is_on_command_line(self, option: str) -> bool:
        """Whether the command line itself gives a value to an option, and not its environment variable."""
        source = self.context.get_parameter_source(option)
        return source is not None and source.name == "COMMANDLINE"

    def _fields(self, *, here: bool) -> dict[str, Any]:
        """Return the fields of `RunConfig`: from the given options, else the run file, else the options' defaults."""
        from leyden.core.cli.run_file import read_run_file

        written = {} if self.run_file is None else read_run_file(self.run_file)
        own = {name: value for name, value in self._by_options().items() if self._wins(name, written)}
        fields = {**written, **own}
        fields["runners"] = self._runners(written.get("runners") or {})
        sampling = self._named(("temperature", "temperature"), ("max_tokens", "max_tokens"))
        fields["sampling"] = {**(written.get("sampling") or {}), **sampling}
        fields["vllm"] = {**(written.get("vllm") or {}), **read_settings(self.vllm or [], "--vllm")}
        is_same = fields["algorithm"] == written.get("algorithm", USUAL)
        fields["algorithm_config"] = self._algorithm_config((written.get("algorithm_config") or {}) if is_same else {})
        if not isinstance(fields["agent"], str | None):
            fields["agent"] = chosen_agent(None, tuple(fields["agent"]))
        command = () if isinstance(fields["agent"], str | None) else fields["agent"]
        is_here = here and fields["runners"].get("where", "local") == "local"
        fields["env"] = read_env(list(fields["env"]), command, here=is_here)
        return fields

    def _wins(self, field: str, written: Mapping[str, Any]) -> bool:
        given = self.named_agent() is not None if field == "agent" else self.gives(*OPTIONS.get(field, (field,)))
        return given or field not in written

    def _by_options(self) -> dict[str, Any]:
        """Return the fields of `RunConfig` that do not join values of options with the run file's."""
        from leyden.core.data.route import parse_routes

        return {
            "name": self.name,
            "experiment": self.experiment,
            "store": self.store,
            "artifacts": self.artifacts,
            "agent": self.named_agent(),
            "policy": read_policies(self.policy) if self.policy else None,
            "reward": self.reward,
            "reward_weights": read_reward_weights(self.reward_weight or []),
            "input": self.input,
            "hooks": tuple(self.hook or ()),
            "env": tuple(self.env or ()),
            "tasks": self.tasks or "",
            "held_out": [{"name": held_out_name(source), "source": source} for source in self.val or []],
            "steps": 25 if self.steps is None else self.steps,
            "tasks_per_step": self.tasks_per_step,
            "group_size": self.group_size,
            "seed": self.seed,
            "agent_match": self.agent_match,
            "span_match": self.span_match,
            "attribute_match": read_attribute_match(self.attribute_match or []),
            "predicate": self.predicate,
            "workers": self.workers,
            "max_workers": self.max_workers,
            "concurrency": self.concurrency,
            "isolation": check_isolation(self.isolation),
            "timeout_seconds": self.timeout,
            "evaluate_sampled": self.sampled_eval,
            "record_tokens": self.record_tokens,
            "eval_every": self.eval_every,
            "patience": self.patience,
            "checkpoint_every": self.checkpoint_every,
            "keep_checkpoints": self.keep_checkpoints,
            "engine": read_engine(self.engine),
            "device": self.device,
            "threads": self.threads,
            "engine_precision": read_engine_precision(self.engine_precision),
            "deterministic": self.deterministic,
            "tracker": tuple(self.tracker or ()),
            "algorithm": self._algorithm(),
            "routes": msgspec.to_builtins(parse_routes(self.route or [])),
            "provider": self._provider(),
            "endpoint": self._endpoint(),
            "prompts": read_prompt_templates(self.prompt or []),
            "prompt_edits": read_prompt_edits(self.prompts),
            "frozen": read_frozen(self.frozen or []),
            "update": read_update(self.update),
            "record_within": self.record_within,
            "engine_log": self.engine_log,
        }

    def _provider(self) -> dict[str, Any] | None:
        from leyden.core.trainer.serving.provider import read_provider

        provider = read_provider(self.provider, self.provider_key_env)
        return None if provider is None else msgspec.to_builtins(provider)

    def _endpoint(self) -> dict[str, Any] | None:
        from leyden.core.trainer.serving.endpoint import read_model_endpoint

        endpoint = read_model_endpoint(self.endpoint or [], self.model, self.api_key_env)
        return None if endpoint is None else msgspec.to_builtins(endpoint)

    def _algorithm(self) -> str:
        """Return the name of the algorithm.

        The backend VERL is an algorithm; raises UsageError if another is given too.
        """
        if self.backend not in ("torch", VERL):
            raise UsageError(f"--backend must be torch or {VERL}, not {self.backend!r}")
        if self.backend == VERL and self.algorithm not in (VERL, USUAL):
            raise UsageError(f"--backend {VERL} takes the algorithm from VERL's configuration; leave --algorithm out")
        return VERL if self.backend == VERL else self.algorithm

    def _named(self, *pairs: tuple[str, str]) -> dict[str, Any]:
        """Return values of options by the name of their field; without a run file also those that were not given."""
        return {field: getattr(self, option) for field, option in pairs if self.run_file is None or self.gives(option)}

    def _runners(self, written: Mapping[str, Any]) -> dict[str, Any]:
        from leyden.core.trainer.agents.placement import read_where

        own = self._named(
            ("where", "runners"),
            ("ray_address", "ray_address"),
            ("ray_actors", "ray_actors"),
            ("ray_cpus", "ray_cpus"),
            ("host", "host"),
            ("port", "port"),
            ("advertise", "advertise"),
            ("allow_hosts", "allow_host"),
        )
        if "where" in own:
            read_where(own["where"])
        if "allow_hosts" in own:
            own["allow_hosts"] = tuple(own["allow_hosts"] or ())
        return {**written, **own}

    def _algorithm_config(self, written: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**written, **read_settings(self.set_ or [])}
        if self.config is not None and self.run_file is None:
            settings = {"config": read_yaml(self.config), **settings}
        return settings if self.learning_rate is None else settings | {"learning_rate": self.learning_rate}


def takes_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds the options of a run to a command, which receives them as its first argument, `given`."""
    hints = get_type_hints(RunOptions, include_extras=True)
    shared = [_parameter(option.name, option.default, hints[option.name]) for option in fields(RunOptions)]
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "given"]

    def merged(**values: Any) -> Any:
        given = RunOptions(**{option.name: values.pop(option.name) for option in fields(RunOptions)})
        return command(given, **values)

    parameters = [*shared, *own]
    described: Any = merged
    described.__doc__ = command.__doc__
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return merged


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    optional = {} if name == "context" else {"default": default}
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, **optional)
