"""Everything that a store's readers return, as JSON values. Runs in the earlier version, too."""

from typing import Any

import msgspec

from leyden.core.store.base import LightningStore


async def records_of(store: LightningStore) -> dict[str, Any]:
    """Return all records of a store, in the order in which it returns them."""
    rollouts = (await store.query_rollouts()).items
    names = [rollout.rollout_id for rollout in rollouts]
    current = (await store.query_resources()).items
    versions = [(one.resources_id, version) for one in current for version in range(1, one.version + 1)]
    runs = (await store.query_runs()).items
    counts = {name: count for name, count in (await store.statistics()).items() if name.endswith(("s", "length"))}
    found = {
        "rollouts": rollouts,
        "attempts": {name: (await store.query_attempts(name)).items for name in names},
        "spans": {name: (await store.query_spans(name)).items for name in names},
        "resources": current,
        "versions of resources": [await store.get_resources_by_id(name, version) for name, version in versions],
        "latest resources": await store.get_latest_resources(),
        "workers": (await store.query_workers()).items,
        "runs": runs,
        "metrics": {run.run_id: (await store.query_metrics(run.run_id)).items for run in runs},
        "policy versions": (await store.query_policy_versions()).items,
        "counts": {name: count for name, count in counts.items() if isinstance(count, int)},
    }
    return msgspec.json.decode(msgspec.json.encode(found))
