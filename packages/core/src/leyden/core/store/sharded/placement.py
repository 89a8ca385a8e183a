"""Rendezvous hashing: which shard gets a new rollout, and in which order shards are searched for an old one.

Each shard has a weight for each key, by a hash of both, and the highest wins. A shard that is added takes over its
share of the keys and no others; a shard that is removed leaves its share to all others evenly.
Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998).
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Protocol, TypeVar


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """Name of the shard, which alone counts, so that a shard may move to another address."""
        ...


T = TypeVar("T", bound=Named)


def weight(shard: str, key: str) -> int:
    """Return the weight of a shard for a key; neither contains a NUL."""
    return int.from_bytes(blake2b(f"{shard}\0{key}".encode(), digest_size=8).digest(), "big")


def ranked(shards: Iterable[T], key: str) -> list[T]:
    """Return the shards in descending order of their weights for `key`."""
    return sorted(shards, key=lambda shard: weight(shard.name, key), reverse=True)
