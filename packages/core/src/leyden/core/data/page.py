"""`Page`: some of the results of a query, with the number of all results."""

from abc import ABCMeta
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, cast, overload

import msgspec

from leyden.core.errors import StoreError

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True, omit_defaults=True):
    """Some of the results of a query, as a sequence, with the number of all results."""

    items: list[T]
    limit: int
    """-1 means no limit."""
    offset: int
    total: int
    """Number of results before paging."""
    missing: tuple[str, ...] = ()
    """Shards that could not be reached, each with the reason; their results are neither among the items nor counted."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, position: int) -> T: ...

    @overload
    def __getitem__(self, position: slice) -> list[T]: ...

    def __getitem__(self, position: int | slice) -> T | list[T]:
        return self.items[position]

    def __contains__(self, item: object) -> bool:
        return item in self.items

    def __reversed__(self) -> Iterator[T]:
        return reversed(self.items)

    def complete(self) -> "Page[T]":
        """Return this page; raises StoreError where shards are missing from it."""
        if self.missing:
            raise StoreError(f"the results of {'; '.join(self.missing)} are missing")
        return self

    def index(self, item: T, *bounds: int) -> int:
        """Return the first position of an item; raises ValueError where the page does not hold it."""
        return self.items.index(item, *bounds)

    def count(self, item: T) -> int:
        """Return how often the page holds an item."""
        return self.items.count(item)


cast("ABCMeta", Sequence).register(Page)  # a struct cannot have a base class with a metaclass of its own
