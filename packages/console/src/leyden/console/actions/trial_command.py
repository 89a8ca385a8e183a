"""What a run offers for `leyden prompts try`, and the words of the command that compares two variants of it."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.rollout import Task
from leyden.core.errors import RunError, UsageError
from leyden.core.masking import MASK
from leyden.core.trainer.config import RunConfig, load_config
from leyden.core.trainer.prompt_file import write_prompts
from leyden.core.trainer.rollouts.tasks import load_tasks
from leyden.core.trainer.run_folder.folder import RUNS, RunFolder
from leyden.core.trainer.run_folder.models import Models
from leyden.core.trainer.run_folder.prompts.files import SUFFIXES
from leyden.core.trainer.run_folder.versions import VersionFile, prompt_texts
from leyden.core.trainer.services.prompt_trial import check_text

CONCURRENCY = 8
"""Rollouts at once."""
FIND_TASKS = 2
"""Tasks that the agent runs so that its prompts are found."""
TRAINING = "training"
"""Name of the training tasks among the sets."""


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of a comparison, as a page requests it."""

    prompts: Literal["own", "version", "edited"] = "own"
    """The agent's own prompts, or those with which a run of prompt templates began; of a version; or edited texts."""
    version: int | None = None
    """The version whose prompts are sent."""
    texts: dict[str, str] = {}
    """Edited texts by the name of their component or template; the others stay as they are."""
    policy: int | None = None
    """The version that answers; None in a run without a policy, and for the policy that the run began with."""


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request to compare two variants on the first `count` tasks of a set."""

    a: Variant
    b: Variant
    tasks: str
    count: int = 16
    repeats: int = 1

    @property
    def variants(self) -> dict[str, Variant]:
        """Both variants by name."""
        return {"a": self.a, "b": self.b}


class TaskSet(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that the run's folder keeps."""

    name: str
    file: str


class PromptText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that can be edited."""

    name: str
    text: str
    """The agent's own text, or the template with which the run began."""
    place: str
    """Where it is in a request, in words."""


class VersionPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """A version whose prompts differ from those of the version before."""

    version: int
    texts: dict[str, str]


class TrialSource:
    """A run's folder as the source of comparisons. Raises RunError if `leyden prompts try` cannot run its agent."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.config = load_config(self.folder.config_file)
        self._versions = VersionFile(path).read()
        _check(self.config)

    # --- What it offers

    def task_sets(self) -> list[TaskSet]:
        """Return the held-out sets, and then the training tasks, as far as the folder has their files."""
        files = {one.name: self.folder.tasks_file(one.name) for one in self.config.held_out}
        files.setdefault(TRAINING, self.folder.tasks_file())
        return [TaskSet(name=name, file=str(file)) for name, file in files.items() if file.exists()]

    def tasks(self, name: str, count: int) -> list[Task]:
        """Return the first tasks of a set."""
        return load_tasks(self._file(name), count)

    def texts(self, found: PromptEdits | None) -> list[PromptText]:
        """Return the texts that can be edited; `found` are components that `leyden prompts find` has found."""
        templates = [
            PromptText(name=name, text=one.template, place=f"prompt template, {one.engine}")
            for name, one in self.config.prompts.items()
        ]
        components = [
            PromptText(name=one.name, text=one.text, place=_place(one)) for one in self._components(found).components
        ]
        return [*templates, *components]

    def prompt_versions(self) -> list[VersionPrompts]:
        """Return the versions whose prompts differ from those of the version before."""
        found: list[VersionPrompts] = []
        for version in self._versions.values():
            texts = prompt_texts(version)
            if texts and (not found or found[-1].texts != texts):
                found.append(VersionPrompts(version=version.version, texts=texts))
        return found

    def policies(self) -> list[int]:
        """Return the versions of the policy whose weights are on disk; empty in a run without a policy."""
        if not self.config.policies or not self._versions:
            return []
        on_disk = {0, *(number for number, one in self._versions.items() if one.weights is not None)}
        if (self.folder.policy / "config.json").exists():
            on_disk.add(Models(self.folder, self.config).kept)
        return sorted(on_disk & self._versions.keys())

    def _components(self, found: PromptEdits | None) -> PromptEdits:
        own = [one for edits in self.config.prompt_edits.values() for one in edits.components]
        if own:
            return PromptEdits(components=tuple(msgspec.structs.replace(one, new_text=None) for one in own))
        return found or PromptEdits()

    # --- Commands

    def find(self, tasks: str, out: Path) -> list[str]:
        """Return the words of `leyden prompts find`, which writes the components to `out`."""
        options = ["--tasks", self._file(tasks), "-n", str(FIND_TASKS), "--out", str(out), "--json"]
        return self._with_agent(["prompts", "find"], [*options, *self._answering()])

    def compare(self, trial: TrialRequest, folder: Path, store: str, found: PromptEdits | None) -> list[str]:
        """Return the words of `leyden prompts try`. Edited texts are written into `folder`."""
        prompts = [
            word
            for name, variant in trial.variants.items()
            for one in self._prompts(name, variant, folder, found)
            for word in (f"--{name}", one)
        ]
        return self._compared(trial, prompts, store)

    def shell_commands(self, store: str) -> dict[str, str]:
        """Return the commands for a shell, with names of files that a person chooses."""
        prompts = ["--b", "prompts.yaml"]
        if self.config.prompts:
            name = next(iter(self.config.prompts))
            prompts = ["--a", f"{name}=old.txt", "--b", f"{name}=new.txt"]
        trial = TrialRequest(a=Variant(), b=Variant(), tasks=self.task_sets()[0].name)
        commands = {
            "find": self.find(trial.tasks, Path("prompts.yaml")),
            "try": self._compared(trial, prompts, store),
        }
        return {name: shlex.join(["leyden", *words]) for name, words in commands.items()}

    def _compared(self, trial: TrialRequest, prompts: Sequence[str], store: str) -> list[str]:
        options = [
            "--tasks",
            self._file(trial.tasks),
            "-n",
            str(trial.count),
            "--repeats",
            str(trial.repeats),
            *prompts,
        ]
        versions = {name: variant.policy or 0 for name, variant in trial.variants.items()}
        if any(versions.values()):
            for name, version in versions.items():
                options += [f"--policy-{name}", self._version(version)]
            options += ["--device", self.config.device]
        else:
            options += self._answering()
        options += ["--reward", self.config.reward] if self.config.reward else []
        return self._with_agent(["prompts", "try"], [*options, "--store", store, *self._runs(), "--json"])

    def label(self, variant: Variant) -> str:
        """Return a variant in words."""
        own = "the prompts that the run began with" if self.config.prompts else "the agent's own prompts"
        prompts = {"own": own, "version": f"the prompts of version {variant.version}", "edited": "edited prompts"}
        policies = self.policies()
        by = f", answered by version {variant.policy or 0}" if len(policies) > 1 else ""
        return prompts[variant.prompts] + by

    def sent(self, variant: Variant, found: PromptEdits | None) -> dict[str, str]:
        """Return the texts that a variant sends, by name, as far as they are known."""
        if variant.prompts == "version":
            own = (one.texts for one in self.prompt_versions() if one.version == variant.version)
            return next(own, dict[str, str]())
        edited = variant.texts if variant.prompts == "edited" else {}
        return {one.name: edited.get(one.name, one.text) for one in self.texts(found)}

    def _prompts(self, name: str, variant: Variant, folder: Path, found: PromptEdits | None) -> Iterator[str]:
        if variant.prompts == "version":
            if variant.version not in [one.version for one in self.prompt_versions()]:
                raise UsageError(f"variant {name.upper()}: version {variant.version} of this run has no prompts")
            yield self._version(variant.version or 0)
            return
        texts = dict(variant.texts) if variant.prompts == "edited" else {}
        for text_name, text in texts.items():
            check_text(f"variant {name.upper()}", text_name, text)
        for template, own in self.config.prompts.items():
            yield f"{template}={_written(folder / f'{name}-{template}', own, texts.pop(template, own.template))}"
        edits = self._components(found).with_texts(texts)
        if edits.changed:
            file = folder / f"{name}.yaml"
            write_prompts(file, edits)
            yield str(file)

    def _version(self, version: int) -> str:
        return f"{self.folder.path.name}:{version}"

    def _runs(self) -> list[str]:
        parent = self.folder.path.parent
        return [] if parent == Path(RUNS) else ["--runs", str(parent)]

    def _file(self, name: str) -> str:
        for one in self.task_sets():
            if one.name == name:
                return one.file
        raise UsageError(f"this run's folder has no tasks {name!r}")

    def _answering(self) -> list[str]:
        endpoint = self.config.endpoint
        if endpoint is None:
            return ["--policy", next(iter(self.config.policies.values())), "--device", self.config.device]
        if endpoint.policy is not None:
            return ["--policy", endpoint.policy, "--device", self.config.device]
        words = [word for url in (endpoint.url, *endpoint.replicas) for word in ("--endpoint", url)]
        words += ["--model", endpoint.model] if endpoint.model else []
        return words + (["--api-key-env", endpoint.key_env] if endpoint.key_env else [])

    def _with_agent(self, command: Sequence[str], options: Sequence[str]) -> list[str]:
        config, agent = self.config, self.config.agent
        named = [agent] if isinstance(agent, str) else []
        words = [*command, *named, *options, "--concurrency", str(min(CONCURRENCY, config.concurrency))]
        words += ["--timeout", str(config.timeout_seconds), "--isolation", config.isolation]
        words += ["--input", config.input] if config.input else []
        words += [word for hook in config.hooks for word in ("--hook", hook)]
        words += [word for name in config.env for word in ("--env", name)]
        if config.provider is not None:
            words += ["--provider", config.provider.url]
            words += ["--provider-key-env", config.provider.key_env] if config.provider.key_env else []
        return words if isinstance(agent, str) or agent is None else [*words, "--", *agent]


def _check(config: RunConfig) -> None:
    """Raise RunError, in one sentence, for a run whose agent `leyden prompts try` cannot run as the run does."""
    agent = config.agent
    words = [agent] if isinstance(agent, str) else list(agent or ())
    if not words:
        raise RunError("this run has no agent: it learned from stored rollouts")
    if words[0].startswith("<"):
        raise RunError(
            f"the agent of this run was given in Python, as {words[0]}: `try_prompts` of "
            "leyden.core.trainer.services.prompts compares its prompts there"
        )
    given: list[Any] = [*words, config.input, config.reward, *config.hooks]
    if any(MASK in str(one) for one in given):
        raise RunError("the command of this run's agent has a secret, which the run's folder does not keep")
    if config.has_names or config.frozen or config.routes:
        raise RunError(
            "several models answer the agent of this run, by routes; `leyden prompts try` answers all calls with one"
        )


def _place(component: PromptComponent) -> str:
    caller = [text for text in (component.agent, component.node) if text]
    return f"{component.place}" + (f" of {' / '.join(caller)}" if caller else "")


def _written(path: Path, own: PromptTemplate, text: str) -> Path:
    """Write a template, with the suffix of its engine, and return the file."""
    file = path.with_name(f"{path.name}{SUFFIXES[own.engine]}")
    file.write_text(text, encoding="utf-8", newline="")
    return file
