"""Pages of rollouts: read from the sorted sets where these give the page, otherwise from all states that may match."""

from collections.abc import Mapping

from leyden.core.data.rollout import ROLLOUT_MOVES
from leyden.core.store.common.rows import RolloutRow
from leyden.core.store.query import Condition, Query, evaluate
from leyden.core.store.redis.codec import row_without_bodies
from leyden.core.store.redis.scripts import StaleData
from leyden.core.store.redis.transaction import TransactionSnapshot

Page = tuple[list[RolloutRow], int]


def page_of_rollouts(rows: TransactionSnapshot, query: Query) -> Page:
    """Return the page, and the number of rows before paging."""
    tests: Mapping[str, Condition] = {}
    if query.logic == "and" or len(query.conditions) == 1:
        tests = {test.field: test for test in query.conditions if test.test == "one of"}
    if "rollout_id" in tests:
        found = rows.at_rest(sorted(tests["rollout_id"].value)).values()
        return evaluate([rollout.row for rollout in sorted(found, key=lambda rollout: rollout.position)], query)
    sets = [rows.keys.rollouts]
    if "status" in tests:
        sets = [rows.keys.status(status) for status in ROLLOUT_MOVES if status in tests["status"].value]
    if not sets:
        return [], 0
    if query.sort_by is None and len(tests) == len(query.conditions):
        return _in_order(rows, query, sets)
    return _evaluated(rows, query, sets)


def _in_order(rows: TransactionSnapshot, query: Query, sets: list[str]) -> Page:
    """Read only the page."""
    first, last = query.offset, -1 if query.limit < 0 else query.offset + query.limit - 1
    sizes = [("ZCARD", name) for name in sets]
    if query.limit == 0:
        return [], sum(rows.query(*sizes))
    found, *counted = rows.query(("EACH", str(first), str(last), rows.keys.rollout, " ".join(sets), "HGETALL"), *sizes)
    ids = [name.decode() for name, _ in found]
    for name, (_, flat) in zip(ids, found, strict=True):
        rows.note(name, flat)
    at_rest = rows.at_rest(ids)
    return [at_rest[name].row for name in ids], sum(counted)


def _evaluated(rows: TransactionSnapshot, query: Query, sets: list[str]) -> Page:
    """Read the fields for filters and sorting of all rollouts, then read the page."""
    (found,) = rows.query(("EACH", "0", "-1", rows.keys.rollout, " ".join(sets), "HMGET", "v", "state"))
    versions = {name.decode(): version.decode() for name, (version, _) in found}
    states = [row_without_bodies(name.decode(), state) for name, (_, state) in found]
    page, total = evaluate(states, query)
    at_rest = rows.at_rest([row.rollout_id for row in page])
    for name, rollout in at_rest.items():
        if rollout.version != versions[name]:
            raise StaleData
    return [at_rest[row.rollout_id].row for row in page], total
