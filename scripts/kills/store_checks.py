"""What the store campaign's writers noted, held against the store. Knows nothing of how anything was killed."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore

_NAMES = re.compile(r"\b(ro-)?[0-9a-f]{12,}\S*|\b\d+(\.\d+){3}(:\d+)?|\b\d+\b")


@dataclass(frozen=True, slots=True)
class Kept:
    """What is in the store, by rollout."""

    rollouts: Mapping[str, Rollout]
    attempts: Mapping[str, list[Attempt]]
    spans: Mapping[str, list[Span]]
    statistics: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def read_kept(store: LightningStore) -> Kept:
    """Read everything."""
    rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
    attempts = {name: list(await store.query_attempts(name)) for name in rollouts}
    spans = {name: list(await store.query_spans(name)) for name in rollouts}
    return Kept(rollouts, attempts, spans, await store.statistics())


def lost(events: Iterable[Mapping[str, Any]], kept: Kept) -> list[str]:
    """What was acknowledged and is not there."""
    attempts = {(name, attempt.attempt_id) for name, some in kept.attempts.items() for attempt in some}
    numbers = {(name, span.span_id): span.sequence_id for name, some in kept.spans.items() for span in some}
    missing: list[str] = []
    for event in events:
        name = event["rollout"]
        if name and name not in kept.rollouts:
            missing.append(f"{event['kind']}: there is no rollout {name}")
        elif event["kind"] in ("claim", "end") and (name, event["attempt"]) not in attempts:
            missing.append(f"{event['kind']}: there is no attempt {event['attempt']}")
        elif event["kind"] == "span" and numbers.get((name, event["span"])) != event["number"]:
            missing.append(f"span {event['span']} of {name}: number {event['number']} was acknowledged")
    return missing


def told(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """What errors of the store said, numbers and names aside, and how often."""
    texts = (event["text"] for event in events if event["kind"] == "error")
    return dict(Counter(_NAMES.sub("…", text) for text in texts).most_common())


def claimed_twice(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Attempts that were given to more than one."""
    claims = Counter(event["attempt"] for event in events if event["kind"] == "claim")
    return [f"attempt {name} was given out {count} times" for name, count in claims.items() if count > 1]


def unfinished(kept: Kept) -> list[str]:
    """Rollouts that did not come to their end, though their writers went on until there were none."""
    wrong = [f"{name} is {rollout.status}" for name, rollout in kept.rollouts.items() if rollout.status != "succeeded"]
    if kept.statistics["queue_length"]:
        wrong.append(f"{kept.statistics['queue_length']} rollouts are in the queue")
    return wrong


def out_of_order(kept: Kept) -> list[str]:
    """Rollouts whose attempts or spans are not numbered from 1, each number once."""
    wrong: list[str] = []
    for name in kept.rollouts:
        numbers: dict[str, list[int]] = defaultdict(list)
        numbers["attempts"] = sorted(attempt.sequence_id for attempt in kept.attempts[name])
        numbers["spans"] = sorted(span.sequence_id for span in kept.spans[name])
        for what, found in numbers.items():
            if found != list(range(1, len(found) + 1)):
                wrong.append(f"{what} of {name} have the numbers {found}")
    return wrong
