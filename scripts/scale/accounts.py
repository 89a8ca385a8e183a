"""What became of a scale campaign's rollouts, held against what was begun. Knows nothing of processes."""

from collections import Counter
from dataclasses import dataclass

from leyden.core.data import semconv
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout
from leyden.core.store.base import LightningStore

PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Counts over everything that the store holds."""

    statuses: Counter[str]
    tries: Counter[int]
    """Rollouts by how many attempts they took."""
    calls: int
    """Recorded model calls of the attempts that finished."""
    unknown: int
    """Rollouts that nobody had begun."""


async def read_accounts(store: LightningStore, begun: set[str]) -> Accounts:
    """Count every rollout in the store, and the calls of its last attempt."""
    statuses, tries, calls, unknown, offset = Counter[str](), Counter[int](), 0, 0, 0
    while page := (await store.query_rollouts(sort_by="start_time", limit=PAGE, offset=offset)).items:
        offset += len(page)
        for rollout in page:
            statuses[rollout.status] += 1
            unknown += rollout.rollout_id not in begun
            if isinstance(rollout, AttemptedRollout):
                tries[rollout.attempt.sequence_id] += 1
                spans = await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)
                calls += sum(semconv.CALL_ID in span.attributes for span in spans)
    return Accounts(statuses=statuses, tries=tries, calls=calls, unknown=unknown)


def unaccounted(accounts: Accounts, begun: int) -> list[str]:
    """What does not add up, each in one line."""
    wrong: list[str] = []
    finished = sum(count for status, count in accounts.statuses.items() if status in FINISHED_ROLLOUT)
    if finished != begun:
        wrong.append(f"{begun} rollouts were begun and {finished} finished: {dict(accounts.statuses)}")
    if accounts.statuses["succeeded"] != begun:
        wrong.append(f"{begun - accounts.statuses['succeeded']} of {begun} rollouts did not succeed")
    if accounts.unknown:
        wrong.append(f"{accounts.unknown} rollouts are in the store that nobody had begun")
    if accounts.calls != 2 * accounts.statuses["succeeded"]:
        wrong.append(f"{accounts.calls} calls are recorded of {accounts.statuses['succeeded']} rollouts with two each")
    return wrong
