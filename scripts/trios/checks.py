"""What must hold of a finished campaign. Each check returns, in one line each, what does not; nothing means all holds.

Knows nothing of how the campaign was run, and no framework.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from leyden.core.data import semconv
from leyden.core.data.reasons import NOT_SELECTED
from leyden.core.data.span import Span
from leyden.core.testing.gateway_bench import turns
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector
from trios.model import CALLS, CRITIC, PLANNER, SOLVER, asker
from trios.stage import Evidence

SELECTED = (PLANNER, SOLVER)
"""The agents that learn; the critic does not."""


class Crowd:
    """The evidence, put in the order that checks need."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.asked = {record.request_id: asker(turns(record.prompt_ids)) for record in evidence.log}
        """By call: who asked, and of which rollouts the prompt speaks. This is the engine's own word."""

    def served(self) -> Iterator[tuple[int, Span]]:
        """Yield the gateway's record of each call, with the rollout it is kept under."""
        for number, spans in self.evidence.spans.items():
            for span in spans:
                if semconv.CALL_ID in span.attributes:
                    yield number, span


def all_wrong(evidence: Evidence) -> dict[str, list[str]]:
    """Return what is wrong, by check."""
    crowd = Crowd(evidence)
    return {
        "every call recorded once": list(_records(crowd)),
        "attempt": list(_attempts(crowd)),
        "agent": list(_speakers(crowd, semconv.AGENT_NAME)),
        "node": list(_speakers(crowd, semconv.NODE)),
        "parent": list(_parents(crowd)),
        "selection": list(_selection(crowd)),
        "what agents returned": list(_results(evidence)),
        "only this machine": evidence.looked_up,
    }


def _records(crowd: Crowd) -> Iterator[str]:
    times = Counter(str(span.attributes[semconv.CALL_ID]) for _, span in crowd.served())
    logged = Counter(record.request_id for record in crowd.evidence.log)
    for call in {*times, *logged}:
        if (times[call], logged[call]) != (1, 1):
            yield f"{call}: {times[call]} records, {logged[call]} calls of the engine"
    made = Counter((tuple(rollouts), agent) for agent, rollouts in crowd.asked.values())
    for number in crowd.evidence.rollouts:
        for agent, calls in CALLS.items():
            if made[(number,), agent] != calls:
                yield f"rollout {number}: {made[(number,), agent]} calls of {agent}, not {calls}"


def _attempts(crowd: Crowd) -> Iterator[str]:
    for number, span in crowd.served():
        _, rollouts = crowd.asked.get(str(span.attributes[semconv.CALL_ID]), ("", []))
        attempt = crowd.evidence.rollouts[number].attempt
        if rollouts != [number] or (span.rollout_id, span.attempt_id) != (attempt.rollout_id, attempt.attempt_id):
            yield f"{span.attributes[semconv.CALL_ID]}: under rollout {number}, but its prompt speaks of {rollouts}"


def _speakers(crowd: Crowd, attribute: str) -> Iterator[str]:
    for _, span in crowd.served():
        agent, _ = crowd.asked.get(str(span.attributes[semconv.CALL_ID]), ("nobody", []))
        right = agent if attribute == semconv.AGENT_NAME else crowd.evidence.nodes.get(agent)
        if span.attributes.get(attribute) != right:
            yield f"{span.attributes[semconv.CALL_ID]}: {attribute} is {span.attributes.get(attribute)}, not {right}"


def _parents(crowd: Crowd) -> Iterator[str]:
    for number, span in crowd.served():
        by_id = {one.span_id: one for one in crowd.evidence.spans[number]}
        agent, _ = crowd.asked.get(str(span.attributes[semconv.CALL_ID]), ("nobody", []))
        above = list(_above(span, by_id))
        asking = above[0] if above else None
        if asking is None or asking.attributes.get(semconv.OPERATION) not in ("chat", "invoke_agent"):
            yield f"{span.attributes[semconv.CALL_ID]}: hangs from {asking and asking.name}"
        elif not any(_is_agent(one, agent) for one in above):
            yield f"{span.attributes[semconv.CALL_ID]}: no span of {agent} above it"
        elif next(one for one in above if semconv.AGENT_NAME in one.attributes).attributes[semconv.AGENT_NAME] != agent:
            yield f"{span.attributes[semconv.CALL_ID]}: the nearest agent above it is not {agent}"
    for number, spans in crowd.evidence.spans.items():
        if len(roots := [span.name for span in spans if span.parent_id is None]) != 1:
            yield f"rollout {number}: the roots {roots}"


def _is_agent(span: Span, agent: str) -> bool:
    known = span.attributes.get(semconv.OPERATION), span.attributes.get(semconv.AGENT_NAME)
    return known == ("invoke_agent", agent)


def _above(span: Span, by_id: Mapping[str, Span]) -> Iterator[Span]:
    """Yield what is above `span`, nearest first, as far as it is known."""
    while (parent := by_id.get(span.parent_id or "")) is not None:
        yield parent
        span = parent


def _selection(crowd: Crowd) -> Iterator[str]:
    """Of the agents that are selected every call is a transition, in its own name; of the other one none is."""
    selector = Selector(agent_match=f"^({'|'.join(SELECTED)})$")
    left_out = CALLS[CRITIC]
    for number, rollout in crowd.evidence.rollouts.items():
        trajectory = assemble(rollout, rollout.attempt, crowd.evidence.spans[number], selector)
        chosen = sorted(one.call_id for one in trajectory.transitions)
        right = sorted(
            call for call, (agent, rollouts) in crowd.asked.items() if rollouts == [number] and agent in SELECTED
        )
        if chosen != right:
            yield f"rollout {number}: the transitions are {chosen}, not {right}"
        if trajectory.excluded.get(NOT_SELECTED, 0) != left_out:
            yield f"rollout {number}: {trajectory.excluded} is left out, not {left_out} calls of {CRITIC}"


def _results(evidence: Evidence) -> Iterator[str]:
    for number, result in evidence.results.items():
        named = set(re.findall(r"rollout-(\d+)", result))
        if named != {str(number)}:
            yield f"rollout {number}: returned {result[:200]!r}"
