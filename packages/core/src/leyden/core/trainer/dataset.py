"""`Dataset`: tasks in order, as `Trainer.fit` takes them; a list is one."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

T = TypeVar("T", covariant=True)


class Dataset(Protocol[T]):
    """Tasks by their row number."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> T: ...

    def __iter__(self) -> Iterator[T]: ...
