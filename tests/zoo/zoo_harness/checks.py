"""What differs between an agent with Leyden and without, and between its record and what the engine really did."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.span import Span
from leyden.core.trajectory.calls import is_recorded_call
from zoo_harness.agent_file import AgentFile
from zoo_harness.observing import VOLATILE, same_text, without_uuids
from zoo_harness.trial import GROUP, Seen, SeenRollout, Trial

_LONGEST = 900
_OURS = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ \S+ (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) leyden")
_LEVELS = re.compile(r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:")
"""What `logging` puts before a line once `logging.error` was called: in a worker, perhaps by an earlier run."""
_STAMPS = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d|\b\d+\.\d+ ?m?s\b *")
"""Times and durations, the latter with what pads them in a frame."""


def author_problems(trial: Trial) -> list[str]:
    """Why the agent's file, or the agent itself, is wrong: nothing of it is about Leyden."""
    spec, problems = trial.agent.spec, list[str]()
    for seen in trial.author:
        where = f"task {seen.task} without Leyden"
        problems += [f"{where}: {line}" for line in seen.unanswered]
        problems += [f"{where}: {line}" for line in _outcome(spec, seen)]
        answered = sum(body.get("n") or 1 for body in seen.requests) - _errors(spec)
        if answered != spec.calls_of(seen.task):
            problems.append(f"{where}: {answered} model calls, and the file says {spec.calls_of(seen.task)}")
        if seen.others != spec.other_requests:
            problems.append(f"{where}: {seen.others} other requests, and the file says {spec.other_requests}")
    return problems


def _errors(spec: AgentFile) -> int:
    """Calls of a run that the script answers with errors."""
    return sum(rule.times or 0 for rule in spec.model if rule.status or rule.hang)


def _outcome(spec: AgentFile, seen: Seen) -> Iterable[str]:
    if spec.raises is not None:
        text = "no error" if seen.error is None else f"{seen.error['type']}: {seen.error['text']}"
        if spec.raises not in text:
            yield f"it ended with {text}, and the file says {spec.raises!r}"
    elif seen.error is not None:
        yield f"it raised {seen.error['type']}: {seen.error['text'][-_LONGEST:]}"
    elif (wanted := spec.result_of(seen.task) or "") not in _text(seen.result):
        yield f"the result {_text(seen.result)[:300]} does not hold {wanted!r}"


def _text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def dev_problems(trial: Trial) -> list[str]:
    """What is wrong with the rollouts of `leyden dev`."""
    return _rollout_problems(trial, trial.dev) if trial.started is None else [f"no worker: {trial.started}"]


def train_problems(trial: Trial) -> list[str]:
    """What is wrong with the rollouts of the training step."""
    return _rollout_problems(trial, trial.train) if trial.started is None else [f"no worker: {trial.started}"]


def _rollout_problems(trial: Trial, rollouts: Sequence[SeenRollout]) -> list[str]:
    problems: list[str] = []
    for seen in rollouts:
        found = [*_record_problems(trial, seen), *_foreign_words(trial, seen)]
        if seen.error is not None and trial.agent.spec.raises is None:
            found.insert(0, f"it failed: {seen.error['type']}: {same_text(seen.error['text'])[-_LONGEST:]}")
        problems += [f"{seen.rollout_id} (task {seen.task}): {line}" for line in found]
    return problems


def same_problems(trial: Trial) -> list[str]:
    """What the agent does otherwise with Leyden than without."""
    problems: list[str] = []
    if trial.started is not None:
        return [f"no worker: {trial.started}"]
    for seen in (*trial.dev, *trial.train):
        author = trial.author[seen.task]
        differences = [
            *_difference("result", author.result, seen.result),
            *_difference("state", author.state if author.error is None else None, seen.state),
            *_difference("error", _error(author), _error(seen)),
            *_difference("requests", _bodies(author.requests), _bodies(seen.requests)),
        ]
        problems += [f"{seen.rollout_id} (task {seen.task}): {line}" for line in differences]
    problems += _leaks(trial)
    problems += _printed(trial)
    return problems


def _error(seen: Seen) -> dict[str, str] | None:
    return seen.error and {"type": seen.error["type"], "text": same_text(seen.error["text"])}


def _bodies(bodies: Sequence[dict[str, Any]]) -> list[str]:
    """In an order that does not depend on which of several calls at once came first."""
    return sorted(json.dumps(_without_ids(body), sort_keys=True) for body in bodies)


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in VOLATILE}  # pyright: ignore[reportUnknownVariableType]  # JSON
    if isinstance(value, list):
        return [_without_ids(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # JSON
    return same_text(value) if isinstance(value, str) else value


def _difference(what: str, without: Any, having: Any) -> list[str]:
    if without == having:
        return []
    one, other = (json.dumps(value, indent=1, sort_keys=True).splitlines() for value in (without, having))
    lines = [line for line in difflib.unified_diff(one, other, "without", "with", n=1, lineterm="")][2:]
    return [f"{what} differs (- without, + with Leyden): " + " ".join(" ".join(lines).split())[:_LONGEST]]


def _leaks(trial: Trial) -> list[str]:
    problems = [f"a model call went to the agent's own provider: {str(body)[:200]}" for body in trial.leaked]
    runs = len(trial.dev) + len(trial.train)
    without, having = sum(seen.others for seen in trial.author) * runs, trial.others * len(trial.author)
    if without != having:
        problems.append(f"{trial.others} other requests in {runs} rollouts, and {without} without Leyden")
    return problems


def _printed(trial: Trial) -> list[str]:
    """Lines of standard output that are missing with Leyden, and lines that are printed with Leyden alone.

    A worker's log holds both of its agents' streams; what an agent wrote to either may stand in it.
    """
    if _characters(trial.log) == _characters("\n".join(seen.printed for seen in trial.author), 1 + GROUP):
        return []  # lines of rollouts that print at once are mixed
    having = _lines(trial.log)
    printed, written = set[str](), set[str]()
    for seen in trial.author:
        printed |= _lines(seen.printed)
        written |= _lines(seen.written)
        if seen.error:  # Python prints the traceback of an error that ends a program; a worker logs it
            written |= _lines(seen.error["text"]) | _lines(seen.error.get("traceback", ""))
    known = printed | written
    alone = sorted(line for line in having - known if not _are_joined(line, known))
    missing = sorted(line for line in printed - having if not any(line in other for other in having))
    return [
        *(f"not printed with Leyden: {line[:200]}" for line in missing[:3]),
        *(f"printed with Leyden alone: {line[:200]}" for line in alone[:3]),
    ]


def _are_joined(line: str, known: set[str]) -> bool:
    """Whether a line is several lines of rollouts that print at once, whose ends came later."""
    rests = (_LEVELS.sub("", line.removeprefix(one)) for one in known if one and line.startswith(one))
    return any(not rest or _are_joined(rest, known) for rest in rests)


def _characters(text: str, times: int = 1) -> Counter[str]:
    """How often each character is printed, `times` as often."""
    lines = [same_text(line) for line in text.splitlines() if not _OURS.match(line)]
    return Counter({letter: count * times for letter, count in Counter("".join("".join(lines).split())).items()})


def _lines(text: str) -> set[str]:
    lines = (
        _STAMPS.sub("TIME", _LEVELS.sub("", line.rstrip()))
        for line in same_text(text).splitlines()
        if not _OURS.match(line)
    )
    return {line for line in lines if line.strip()}


# --- The record


def _record_problems(trial: Trial, seen: SeenRollout) -> list[str]:
    spec = trial.agent.spec
    problems = [f"no rule for what the engine read: {line}" for line in seen.unanswered]
    calls = [span for span in seen.spans if is_recorded_call(span) and semconv.PROMPT_IDS in span.attributes]
    recorded = Counter(str(span.attributes.get(semconv.CALL_ID)) for span in calls)
    drawn = {record.request_id: record for record in seen.engine_log}
    if len(drawn) != spec.calls_of(seen.task):
        problems.append(f"the engine answered {len(drawn)} calls, and the file says {spec.calls_of(seen.task)}")
    problems += [f"call {name} is recorded {count} times" for name, count in recorded.items() if count > 1]
    problems += [f"call {name} is not recorded" for name in drawn.keys() - recorded.keys()]
    problems += [f"call {name} is recorded and was never answered" for name in recorded.keys() - drawn.keys()]
    for span in calls:
        record = drawn.get(str(span.attributes.get(semconv.CALL_ID)))
        if record is not None and _forged(span, record.prompt_ids, record.response_ids, record.sampling_logprobs):
            problems.append(f"call {record.request_id}: ids or log-probabilities are not the engine's")
    return [*problems, *_structure(trial, seen, calls)]


def _forged(span: Span, prompt: list[int], response: list[int], log_probs: list[float]) -> bool:
    """Whether the record holds something else; log-probabilities are compared as they are kept, in four bytes each."""
    packed = [span.attributes.get(k) for k in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.SAMPLING_LOGPROBS)]
    return packed != [pack_ids(prompt), pack_ids(response), pack_log_probs(log_probs)]


def _structure(trial: Trial, seen: SeenRollout, calls: Sequence[Span]) -> list[str]:
    """Names of agents and tools, and the parents of calls."""
    spec, problems = trial.agent.spec, list[str]()
    names = {str(span.attributes.get(semconv.AGENT_NAME)) for span in calls}
    if spec.agents is not None and names != set(spec.agents):
        problems.append(f"calls are recorded for the agents {sorted(names)}, and the file says {sorted(spec.agents)}")
    used = {span.name.removeprefix("execute_tool ") for span in seen.spans if span.name.startswith("execute_tool ")}
    if spec.tools is not None and used != set(spec.tools):
        problems.append(f"the tools {sorted(used)} are recorded, and the file says {sorted(spec.tools)}")
    known = {span.span_id for span in seen.spans}
    if spec.agents and (orphans := sum(span.parent_id not in known for span in calls)):
        problems.append(f"{orphans} calls are recorded without what they are part of")
    return problems


def _foreign_words(trial: Trial, seen: SeenRollout) -> list[str]:
    """Words of other tasks in what this rollout's model read, and in what was recorded of it."""
    tasks = [set(re.findall(r"\w{4,}", json.dumps(task))) for task in trial.agent.spec.tasks]
    own = tasks[seen.task] | set(
        re.findall(r"\w{4,}", json.dumps([one.requests for one in trial.author if one.task == seen.task]))
    )
    foreign = set[str]().union(*tasks) - own
    held = json.dumps(seen.requests) + " ".join(str(value) for span in seen.spans for value in span.attributes.values())
    words = set(re.findall(r"\w{4,}", without_uuids(held)))
    return [f"it holds the word {word!r} of another task" for word in sorted(foreign & words)]
