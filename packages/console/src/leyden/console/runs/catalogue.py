"""Catalogue: the runs that the console shows, found in folders of runs and in stores, each under a key for links."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from leyden.console.runs.folder_run import FolderRun
from leyden.console.plain import one_line
from leyden.console.runs.run import Run, RunItem
from leyden.console.runs.stored_run import StoreFolder
from leyden.core.errors import LeydenError, RunError
from leyden.core.masking import mask_text
from leyden.core.tuning.plan import STUDY_FILE

FRESH = 1.0
"""Seconds for which a listing of the folders is used again."""
STORE_SECONDS = 2.0
"""Seconds that a list of runs waits for a store."""

log = logging.getLogger(__name__)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A run or a source that cannot be read."""

    where: str
    error: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, newest first, and what could not be read."""

    runs: list[RunItem]
    problems: list[Problem]


class Catalogue:
    """The runs in `folders`, which hold runs or are runs, in their studies, and in the stores at `uris`."""

    def __init__(self, folders: Sequence[Path], uris: Sequence[str] = ()) -> None:
        self.folders = [one if one.name not in ("", "..") else one.resolve() for one in folders]  # "." has no name
        self.uris = list(dict.fromkeys(uris))
        self._runs: dict[str, Run] = {}
        self._names: Counter[str] = Counter()
        self._keys: dict[str, str] = {}
        """Keys by a run's place: a key is never given to another run while the console works."""
        self._gone: dict[str, str] = {}
        """Places of the runs that were there before, by key."""
        self._studies: dict[str, tuple[str, Path]] = {}
        """Key and folder of each study by its place."""
        self._stores = [StoreFolder(uri) for uri in self.uris]
        self._unlisted: dict[str, Run] = {}
        self._problems: list[Problem] = []
        self._looked = 0.0
        self._looking = asyncio.Lock()

    @property
    def sources(self) -> list[str]:
        """Names of the folders and stores, with secrets masked."""
        return [*map(str, self.folders), *map(mask_text, self.uris)]

    async def listing(self) -> Listing:
        """Return all runs with their states; a run that cannot be read is a problem, and hides no other."""
        await self._look()
        items: list[RunItem] = []
        problems = list(self._problems)
        for key, run in list(self._runs.items()):
            try:
                items.append(self.labelled(await run.listed(key)))
            except (LeydenError, OSError, msgspec.MsgspecError) as error:
                problems.append(Problem(where=run.place, error=one_line(error)))
            except Exception as error:  # a file that is damaged in another way
                log.exception("%s cannot be read", run.place)
                problems.append(Problem(where=run.place, error=f"{type(error).__name__}: {one_line(error)}"))
        items.sort(key=lambda item: item.updated or item.began or 0.0, reverse=True)
        return Listing(runs=items, problems=problems)

    def labelled(self, item: RunItem) -> RunItem:
        """Return a run with its label: its name, and its folder if that has another name, or is one of several."""
        run, label = self._runs.get(item.key), item.name
        if run is not None and self._names[run.name] > 1:
            label += f" ({run.place})"
        elif run is not None and run.name != item.name:
            label += f" ({run.name})"
        return msgspec.structs.replace(item, label=label)

    async def run(self, key: str) -> Run:
        """Return the run with this key; raises RunError if there is none."""
        if key in self._unlisted:
            return self._unlisted[key]
        known = self._runs.get(key)
        if known is None or not known.is_still_there:
            await self._look(always=True)
        if key not in self._runs:
            if key in self._gone:
                raise RunError(f"the run was moved or deleted: {self._gone[key]}")
            unread = [f"{one.where}: {one.error}" for one in self._problems]
            raise RunError("; ".join([f"there is no run {key!r} here", *unread]))
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
        """Find the runs, unless that was done a moment ago. Callers at the same time wait for the same look."""
        async with self._looking:
            if always or time.monotonic() - self._looked >= FRESH:
                self._problems = []
                await self._look_into_folders()
                await self._look_into_stores()
                self._names = Counter(run.name for run in self._runs.values())
                self._looked = time.monotonic()

    async def _look_into_folders(self) -> None:
        found: dict[str, tuple[str, Path | Run]] = {}
        for path, name in self._paths():
            found.setdefault(str(path.resolve()), (name, path))
        await self._put(found, {place for place in self._keys if "://" not in place})

    async def _look_into_stores(self) -> None:
        reasons = await asyncio.gather(*(source.problem(STORE_SECONDS) for source in self._stores))
        for source, reason in zip(self._stores, reasons, strict=True):
            beginning = f"{source.uri}#"
            found = {f"{beginning}{run_id}": (run.name, run) for run_id, run in source.runs.items()}
            await self._put(found, {place for place in self._keys if place.startswith(beginning)})
            if reason:
                self._problems.append(Problem(where=mask_text(source.uri), error=reason))

    async def _put(self, found: Mapping[str, tuple[str, Path | Run]], known: Collection[str]) -> None:
        """Add the runs that were found, and remove those of the known places that were not.

        A run that has taken the place of another gets the key of that.
        """
        taken = set(self._keys.values())
        for place, (name, run) in found.items():
            if place not in self._keys:
                key = _free(name, taken)
                taken.add(key)
                self._keys[place] = key
                self._runs[key] = run if isinstance(run, Run) else FolderRun(run)
            elif isinstance(run, Path) and not (replaced := self._runs[self._keys[place]]).is_still_there:
                self._runs[self._keys[place]] = FolderRun(run)
                await replaced.close()
        for place in known:
            if place not in found:
                key = self._keys.pop(place)
                gone = self._runs.pop(key)
                self._gone[key] = gone.place
                await gone.close()

    def _paths(self) -> Iterator[tuple[Path, str]]:
        """Yield the folder of each run and its name for links; of a trial, the study's name is a part of it."""
        for study in self._study_folders():
            for file in sorted(study.glob("*/config.yaml")):
                yield file.parent, f"{study.name}~{file.parent.name}"
        for folder in self.folders:
            if (folder / "config.yaml").exists():
                yield folder, folder.name
            elif folder.is_dir():
                yield from ((file.parent, file.parent.name) for file in sorted(folder.glob("*/config.yaml")))
            else:
                self._problems.append(Problem(where=str(folder), error="there is no such folder"))

    def _study_folders(self) -> Iterator[Path]:
        for folder in self.folders:
            if (folder / STUDY_FILE).exists():
                yield folder
            yield from (file.parent for file in sorted(folder.glob(f"*/{STUDY_FILE}")))

    def studies(self) -> dict[str, Path]:
        """Return the folders of the studies by a key for links."""
        for folder in self._study_folders():
            place = str(folder.resolve())
            if place not in self._studies:
                taken = {key for key, _ in self._studies.values()}
                self._studies[place] = (_free(folder.name, taken), folder)
        return {key: folder for key, folder in self._studies.values() if (folder / STUDY_FILE).exists()}

    async def items_in(self, folders: Sequence[Path]) -> list[RunItem | None]:
        """Return the runs in these folders; None for a folder that is no run here, or cannot be read."""
        await self._look()
        found: list[RunItem | None] = []
        for folder in folders:
            key = self._keys.get(str(folder.resolve()))
            try:
                found.append(None if key is None else self.labelled(await self._runs[key].item(key)))
            except (LeydenError, OSError, msgspec.MsgspecError):
                found.append(None)
        return found


def _free(name: str, taken: set[str]) -> str:
    """Return a key that is not taken: the name, or the name and a number."""
    numbered = (f"{name}~{number}" for number in range(2, len(taken) + 2))
    return next(one for one in (name, *numbered) if one not in taken)
