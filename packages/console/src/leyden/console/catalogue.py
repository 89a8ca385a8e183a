"""Catalogue: the runs that the console shows, found in folders of runs and in stores, each under a key for links."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from leyden.console.folder_run import FolderRun
from leyden.console.plain import one_line
from leyden.console.run import Run, RunItem
from leyden.console.stored_run import StoredRun, StoreFolder
from leyden.core.errors import LeydenError, RunError
from leyden.core.masking import mask_text

FRESH = 1.0
"""Seconds for which a listing of the folders is used again."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A run or a source that cannot be read."""

    where: str
    error: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, newest first, and what could not be read."""

    runs: list[RunItem]
    problems: list[Problem]


class Catalogue:
    """The runs in `folders`, which hold runs or are runs, and in the stores at `uris`."""

    def __init__(self, folders: Sequence[Path], uris: Sequence[str] = ()) -> None:
        self.folders, self.uris = list(folders), list(uris)
        self._runs: dict[str, Run] = {}
        self._keys: dict[str, str] = {}
        """Keys by a run's place: a key is never given to another run while the console works."""
        self._stores = [StoreFolder(uri) for uri in uris]
        self._unlisted: dict[str, Run] = {}
        self._problems: list[Problem] = []
        self._looked = 0.0

    @property
    def sources(self) -> list[str]:
        """Names of the folders and stores, with secrets masked."""
        return [*map(str, self.folders), *map(mask_text, self.uris)]

    async def listing(self) -> Listing:
        """Return all runs with their states; a run that cannot be read is a problem, and hides no other."""
        await self._look()
        items: list[RunItem] = []
        problems = list(self._problems)
        for key, run in self._runs.items():
            try:
                items.append(await run.item(key))
            except (LeydenError, OSError, msgspec.MsgspecError) as error:
                problems.append(Problem(where=run.place, error=one_line(error)))
        items.sort(key=lambda item: item.updated or item.began or 0.0, reverse=True)
        return Listing(runs=items, problems=problems)

    async def run(self, key: str) -> Run:
        """Return the run with this key; raises RunError if there is none."""
        if key in self._unlisted:
            return self._unlisted[key]
        if key not in self._runs:
            await self._look(always=True)
        if key not in self._runs:
            raise RunError(f"there is no run {key!r} here")
        return self._runs[key]

    @property
    def unlisted(self) -> list[str]:
        """Keys of the runs that `add` has added."""
        return list(self._unlisted)

    def add(self, key: str, run: Run) -> None:
        """Add a run that is in no list, such as that of a job."""
        self._unlisted[key] = run

    async def remove(self, key: str) -> None:
        """Close and forget a run that `add` has added."""
        await self._unlisted.pop(key).close()

    async def close(self) -> None:
        """Close the stores."""
        for run in [*self._runs.values(), *self._unlisted.values()]:
            await run.close()
        for store in self._stores:
            await store.close()

    async def _look(self, *, always: bool = False) -> None:
        if not always and time.monotonic() - self._looked < FRESH:
            return
        self._looked = time.monotonic()
        self._problems = []
        found = {place: path for path in self._paths() if (place := str(path.resolve()))}
        for place, path in found.items():
            if place not in self._keys:
                self._runs[self._key(place, path.name)] = FolderRun(path)
        for source in self._stores:
            await self._look_into(source)
        for place, key in self._keys.items():
            if "://" not in place and place not in found:
                gone = self._runs.pop(key, None)
                if gone is not None:
                    await gone.close()
        self._keys = {place: key for place, key in self._keys.items() if key in self._runs}

    async def _look_into(self, source: StoreFolder) -> None:
        try:
            runs = await source.runs()
        except (LeydenError, OSError) as error:
            self._problems.append(Problem(where=mask_text(source.uri), error=one_line(error)))
            return
        for run_id, name in runs:
            place = f"{source.uri}#{run_id}"
            if place not in self._keys:
                self._runs[self._key(place, name)] = StoredRun(source, run_id)

    def _paths(self) -> Iterator[Path]:
        for folder in self.folders:
            if (folder / "config.yaml").exists():
                yield folder
            elif folder.is_dir():
                yield from (file.parent for file in sorted(folder.glob("*/config.yaml")))
            else:
                self._problems.append(Problem(where=str(folder), error="there is no such folder"))

    def _key(self, place: str, name: str) -> str:
        taken = set(self._keys.values())
        key = next(
            one
            for number in range(1, len(taken) + 2)
            if (one := name if number == 1 else f"{name}~{number}") not in taken
        )
        self._keys[place] = key
        return key
