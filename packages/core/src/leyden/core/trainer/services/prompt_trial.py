"""Prompt trial: what two variants, A and B, earned and used on the same tasks, computed from their recorded rollouts.

A variant is the agent with its own prompts, or with others in their places. The comparison is paired by task, as that
of two versions of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import msgspec

from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data import semconv
from leyden.core.data.failure import failure_of
from leyden.core.data.prompts.matching import ReplacedText
from leyden.core.data.resources import Resource, edits_of, prompts_of
from leyden.core.data.rollout import Task
from leyden.core.data.similar_messages import Tally
from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.run_folder.comparison import compare
from leyden.core.trajectory.assemble import last_reward
from leyden.core.trajectory.calls import is_recorded_call

VariantName = Literal["a", "b"]
VARIANTS: tuple[VariantName, VariantName] = ("a", "b")
Prompts = Mapping[str, Resource]
"""Prompts of a variant: `PromptEdits` and `PromptTemplate` resources by name; empty for the agent's own prompts."""
CallCost = Callable[[Span], float | None]
"""Function from a recorded call to its price in US dollars; None if it is not known."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant's rollouts run with."""

    prompts: Prompts = {}
    policy: str | None = None
    """Hugging Face model that answers them; None: that of the plan."""
    policy_version: int = 0
    """Version that the model is of its policy, with which its calls are recorded."""


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of both variants, or one of their dimensions, on the tasks on which both have one."""

    tasks: int
    a: float
    """Mean of the tasks; the value of a task is the mean of its rollouts."""
    b: float
    difference: float
    """Mean of `b - a`."""
    interval: tuple[float, float] | None
    """95 % interval of the mean of `b - a`, from a bootstrap over the tasks; None for one task, which gives none."""
    wins: int
    """Number of tasks on which `b` earned more."""
    losses: int
    ties: int
    p_value: float
    """Two-sided p-value of the sign test."""
    is_share: bool
    """Whether each task earned 0 or 1, so that both means are shares of solved tasks."""


class VariantUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the rollouts of one variant used, and how they ended."""

    rollouts: int
    failed: int
    failures: str
    """The reasons in one line, with their counts; empty if none failed."""
    unrewarded: int
    """Number of rollouts that count for no reward: without one, or in which Leyden itself failed."""
    calls: int
    input_tokens: int | None
    """None if no call has a count."""
    output_tokens: int | None
    uncounted_calls: int
    """Number of answered calls without a count of their tokens."""
    seconds: float | None
    """Mean duration of an attempt, while others ran beside it."""
    cost: float | None
    """List price of the calls in US dollars; None if the price of one of them is not known."""
    edited_calls: int
    """Number of calls in which a text was replaced."""
    replaced: dict[str, int]
    """Number of calls in which each changed prompt component was replaced, by its name."""


class TaskPair(msgspec.Struct, frozen=True, kw_only=True):
    """One task with both variants."""

    row: int
    """Number of the task, from 0."""
    task: Task
    a: float | None
    """Mean reward of its rollouts; None without one."""
    b: float | None
    output_a: str
    """What the agent returned, shortened, or why it failed; of the repeat in which the variants differ most."""
    output_b: str

    @property
    def difference(self) -> float | None:
        """`b - a`; None if one variant has no reward."""
        return None if self.a is None or self.b is None else self.b - self.a


class PromptTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of variant B with variant A."""

    repeats: int
    reward: PairedDifference | None
    """None if no task has a reward with both variants."""
    dimensions: dict[str, PairedDifference]
    """By the dimension of the reward. A rollout that failed has none."""
    a: VariantUse
    b: VariantUse
    cost_unknown: str
    """Why the cost of a variant is None; empty if both are known."""
    pairs: list[TaskPair]
    """In the order of the tasks."""
    problems: list[str]
    """Why the comparison shows nothing, or not what it should: texts that were not replaced, variants that failed."""
    notes: list[str]
    """What does not make the comparison wrong: single components that were not replaced, tasks that are left out."""
    verdict: str
    """Which variant is better, in one sentence; empty if the comparison shows nothing."""

    def largest_differences(self, most: int) -> list[TaskPair]:
        """Return up to `most` tasks whose reward differs between the variants, the largest difference first."""
        differing = [pair for pair in self.pairs if pair.difference]
        return sorted(differing, key=lambda pair: -abs(pair.difference or 0.0))[:most]


def check_variants(a: Prompts, b: Prompts, *, same_policy: bool = True) -> None:
    """Raise UsageError if a variant lacks a prompt template of the other or has an empty text, or if nothing differs.

    `same_policy` says whether the same model answers both.
    """
    for variant, prompts in (("A", a), ("B", b)):
        templates = {name: template.template for name, template in prompts_of(prompts).items()}
        for name, text in (*_new_texts(prompts).items(), *templates.items()):
            check_text(f"variant {variant}", name, text)
    for giver, has, lacking, lacks in (("A", a, "B", b), ("B", b, "A", a)):
        missing = ", ".join(prompts_of(has).keys() - prompts_of(lacks).keys())
        if missing:
            raise UsageError(
                f"variant {giver} has the prompt template {missing!r}, and variant {lacking} has not: an agent has no "
                f"template of its own, so give variant {lacking} one, too, as --{lacking.lower()} {missing}=FILE"
            )
    if same_policy and _texts(a) == _texts(b):
        raise UsageError(
            "both variants send the same texts, so there is nothing to compare: give variant A or B (--a, --b) another "
            "prompt file, in which a component has a `new_text`, or another policy (--policy-a, --policy-b)"
        )


def check_text(variant: str, name: str, text: str) -> None:
    """Raise UsageError if the text that a variant sends as the prompt `name` is empty."""
    if not text.strip():
        raise UsageError(
            f"{variant}: the text of the prompt {name!r} is empty; write one, or leave the prompt as it is"
        )


def compare_variants(
    tasks: Sequence[Task],
    repeats: int,
    variants: Mapping[VariantName, Prompts],
    recorded: Mapping[tuple[VariantName, int, int], RecordedRollout],
    cost: CallCost,
) -> PromptTrial:
    """Compare the recorded rollouts of both variants, which are given by variant, row of the task, and repeat."""
    results = {key: _result(key, rollout) for key, rollout in recorded.items()}
    of_variant = {variant: [result for key, result in results.items() if key[0] == variant] for variant in VARIANTS}
    pairs = [_pair(row, task, repeats, results) for row, task in enumerate(tasks)]
    names = list(dict.fromkeys(name for result in results.values() for name in result.dimensions))
    a, b = (_use(of_variant[variant], recorded, variant, _changed(variants[variant]), cost) for variant in VARIANTS)
    reward = _difference(*(_by_task(of_variant[variant], lambda one: one.score) for variant in VARIANTS))
    problems, notes = _remarks(variants, results, {"a": a, "b": b}, pairs, reward)
    return PromptTrial(
        repeats=repeats,
        reward=reward,
        dimensions={
            name: found
            for name in names
            if (found := _difference(*(_by_task(of_variant[variant], _dimension(name)) for variant in VARIANTS)))
            is not None
        },
        a=a,
        b=b,
        cost_unknown="",
        pairs=pairs,
        problems=problems,
        notes=notes,
        verdict="" if reward is None or problems else _verdict(reward),
    )


def _result(key: tuple[VariantName, int, int], recorded: RecordedRollout) -> RolloutResult:
    """Return a recorded rollout as algorithms read it."""
    request = RolloutRequest(row=key[1], resources_id=recorded.rollout.resources_id, repeat=key[2])
    attempt, spans = recorded.attempts[-1] if recorded.attempts else (None, [])
    failure = None if attempt is None else failure_of(attempt)
    is_lost = failure is not None and failure.kind == "leyden"
    reward, dimensions = (None, {}) if is_lost else last_reward(spans)
    return RolloutResult(
        request=request,
        rollout=recorded.rollout,
        reward=reward,
        dimensions=dimensions,
        failure=failure,
        spans=tuple(spans),
        calls=tuple(filter(is_recorded_call, spans)),
    )


def _dimension(name: str) -> Callable[[RolloutResult], float | None]:
    return lambda result: result.dimensions.get(name)


def _by_task(results: Sequence[RolloutResult], value: Callable[[RolloutResult], float | None]) -> dict[str, float]:
    """Return the mean value of each task's rollouts, by its row; tasks without a value are left out."""
    found: dict[str, list[float]] = {}
    for result in results:
        if (own := value(result)) is not None:
            found.setdefault(str(result.request.row), []).append(own)
    return {row: fmean(values) for row, values in found.items()}


def _difference(a: Mapping[str, float], b: Mapping[str, float]) -> PairedDifference | None:
    paired = compare(a, b)
    if paired is None:
        return None
    return PairedDifference(
        tasks=paired.tasks,
        a=paired.a,
        b=paired.b,
        difference=paired.b - paired.a,
        interval=paired.difference if paired.tasks > 1 else None,
        wins=paired.wins,
        losses=paired.losses,
        ties=paired.ties,
        p_value=paired.p_value,
        is_share=paired.is_share,
    )


def _verdict(found: PairedDifference) -> str:
    if found.wins == found.losses == 0:
        return "no task has another reward with B than with A"
    if found.p_value > 0.05:
        return f"the difference may be chance: B has {found.wins} wins and {found.losses} losses (sign test, 5 %)"
    better, worse = ("B", "A") if found.wins > found.losses else ("A", "B")
    return f"{better} is better than {worse}, beyond chance (sign test, 5 %)"


def _pair(
    row: int, task: Task, repeats: int, results: Mapping[tuple[VariantName, int, int], RolloutResult]
) -> TaskPair:
    both = [(results["a", row, repeat], results["b", row, repeat]) for repeat in range(repeats)]
    shown = max(both, key=lambda pair: abs((pair[1].score or 0.0) - (pair[0].score or 0.0)))
    a, b = ([one.score for one in variant if one.score is not None] for variant in zip(*both, strict=True))
    return TaskPair(
        row=row,
        task=task,
        a=fmean(a) if a else None,
        b=fmean(b) if b else None,
        output_a=_output(shown[0]),
        output_b=_output(shown[1]),
    )


def _output(result: RolloutResult) -> str:
    """Return what the agent returned, as its last span of a result has it, or why the rollout failed."""
    if result.failure is not None:
        return f"failed: {result.failure.text}"
    for span in reversed(result.spans):
        for key in (semconv.FINAL_OUTPUT, semconv.RESULT):
            if key in span.attributes:
                return str(span.attributes[key])
    return "" if result.rollout.status == "succeeded" else f"the rollout was {result.rollout.status}"


def _use(
    results: Sequence[RolloutResult],
    recorded: Mapping[tuple[VariantName, int, int], RecordedRollout],
    variant: VariantName,
    changed: Sequence[str],
    cost: CallCost,
) -> VariantUse:
    failures = Tally()
    for result in results:
        if result.rollout.status != "succeeded":
            text = f"the rollout was {result.rollout.status}" if result.failure is None else result.failure.text
            failures.add(text, result.rollout.rollout_id)
    calls = [call for result in results for call in result.calls]
    counted = [(call, tokens) for call in calls if (tokens := _tokens(call)) is not None]
    costs = [cost(call) for call, _ in counted]
    uncounted = sum(call.status.code != "error" for call in calls) - sum(
        call.status.code != "error" for call, _ in counted
    )
    known = [one for one in costs if one is not None]
    attempts = [attempt for key, one in recorded.items() if key[0] == variant for attempt, _ in one.attempts[-1:]]
    seconds = [attempt.end_time - attempt.start_time for attempt in attempts if attempt.end_time is not None]
    return VariantUse(
        rollouts=len(results),
        failed=failures.total,
        failures=failures.line(),
        unrewarded=sum(result.score is None for result in results),
        calls=len(calls),
        input_tokens=sum(tokens[0] for _, tokens in counted) if counted else None,
        output_tokens=sum(tokens[1] for _, tokens in counted) if counted else None,
        uncounted_calls=uncounted,
        seconds=fmean(seconds) if seconds else None,
        cost=sum(known) if known and len(known) == len(costs) and not uncounted else None,
        edited_calls=sum(semconv.PROMPT_EDITS in call.attributes for call in calls),
        replaced=_replaced(calls, changed),
    )


def _tokens(call: Span) -> tuple[int, int] | None:
    counts = [call.attributes.get(name) for name in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS)]
    read, written = (count if isinstance(count, int) else None for count in counts)
    return None if read is None or written is None else (read, written)


def _changed(resources: Prompts) -> list[str]:
    """Return the names of the components that a variant replaces."""
    return list(_new_texts(resources))


def _new_texts(resources: Prompts) -> dict[str, str]:
    return {one.name: one.current for edits in edits_of(resources).values() for one in edits.changed}


def _texts(resources: Prompts) -> Any:
    changed = [
        (one.agent, one.node, one.place, one.text, one.current)
        for edits in edits_of(resources).values()
        for one in edits.changed
    ]
    return {repr(one) for one in changed}, prompts_of(resources)


def _replaced(calls: Sequence[Span], changed: Sequence[str]) -> dict[str, int]:
    counts = dict.fromkeys(changed, 0)
    for call in calls:
        recorded = call.attributes.get(semconv.PROMPT_EDITS)
        if isinstance(recorded, str | bytes):
            for name in {one.component for one in msgspec.json.decode(recorded, type=list[ReplacedText])}:
                counts[name] = counts.get(name, 0) + 1
    return counts


def _remarks(
    variants: Mapping[VariantName, Prompts],
    results: Mapping[tuple[VariantName, int, int], RolloutResult],
    uses: Mapping[VariantName, VariantUse],
    pairs: Sequence[TaskPair],
    reward: PairedDifference | None,
) -> tuple[list[str], list[str]]:
    """Return the lines about what makes the comparison worthless, and about what does not."""
    problems: list[str] = []
    notes: list[str] = []
    for variant, use in uses.items():
        never = [repr(name) for name, count in use.replaced.items() if not count]
        if never:
            is_all = len(never) == len(use.replaced)
            lines = problems if is_all else notes
            were = f"component{'s' if len(never) > 1 else ''} {', '.join(never)} {'were' if len(never) > 1 else 'was'}"
            lines.append(
                f"{variant.upper()}: the {were} never replaced, because no call had the text"
                + (": this variant sent only the agent's own prompts" if is_all else "")
                + ". Find the prompts again with `leyden prompts find`"
            )
        if use.rollouts and use.failed == use.rollouts:
            problems.append(f"{variant.upper()}: every rollout failed")
    if prompts_of(variants["a"]) != prompts_of(variants["b"]) and _same_first_calls(results):
        problems.append(
            "the first model calls of both variants are the same for every task: the agent does not use the template"
        )
    if reward is None:
        problems.append("no task has a reward with both variants: give --reward, or let the agent return its reward")
    elif left_out := len(pairs) - reward.tasks:
        notes.append(f"{left_out} of {len(pairs)} tasks have no reward with one variant, and are not compared")
    if reward is not None and reward.tasks == 1:
        notes.append("one task gives no interval: run more with -n")
    return problems, notes


def _same_first_calls(results: Mapping[tuple[VariantName, int, int], RolloutResult]) -> bool:
    """Whether both variants began each task with the same model call."""
    firsts = [
        tuple(_first_call(results[variant, row, repeat]) for variant in VARIANTS)
        for of, row, repeat in results
        if of == "a"
    ]
    called = [pair for pair in firsts if None not in pair]
    return bool(called) and all(a == b for a, b in called)


def _first_call(result: RolloutResult) -> object:
    first = min(result.calls, key=lambda call: call.start_time, default=None)
    if first is None:
        return None
    return [first.attributes.get(name) for name in (semconv.INPUT_MESSAGES, semconv.TOOL_DEFINITIONS)]
