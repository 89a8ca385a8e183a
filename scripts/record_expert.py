"""Writes rollouts of an example's expert to a store, for a supervised warm start of any policy.

The expert answers in the place of the unmodified agent's model, on training tasks only. It makes no mistakes, or those
that the example's README describes. `leyden train --algorithm sft --set spans=URI` then imitates the rollouts in the
tokens of its own policy.

    python scripts/record_expert.py calculator --count 500 --store sqlite:///expert.db
    python scripts/record_expert.py calculator --count 500 --store sqlite:///erring.db --erring
"""

import argparse
import asyncio

from leyden.core.store.open import open_store
from tiny_policy.experts import Expert, expert_names, load_expert
from tiny_policy.recording import run_all


async def record_expert(expert: Expert, uri: str, count: int, seed: int, *, erring: bool = False) -> int:
    """Record `count` rollouts of the expert in the store at `uri`; return how many there are."""
    store = await open_store(uri)
    try:
        plans = expert.draw(seed, count, erring=erring)
        await run_all(expert.agent, plans, store)
        return len(plans)
    finally:
        await store.close()


def main() -> None:
    """Record and print where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expert", choices=expert_names())
    parser.add_argument("--store", required=True, help="URI of the store, such as sqlite:///expert.db")
    parser.add_argument("--count", type=int, default=500, help="number of rollouts, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--erring", action="store_true", help="err as the expert behind the example's own policy does")
    options = parser.parse_args()
    expert = load_expert(options.expert)
    recording = record_expert(expert, options.store, options.count, options.seed, erring=options.erring)
    count = asyncio.run(recording)
    print(f"{count} rollouts in {options.store}")


if __name__ == "__main__":
    main()
