"""Export: writes what a store holds as files. Reads the store page by page and writes nothing to it.

See `rows` and `records` for the rows, and `files` for the file formats.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import msgspec

from leyden.core.data import semconv
from leyden.core.data.rollout import Rollout
from leyden.core.errors import UsageError
from leyden.core.masking import mask_text
from leyden.core.policy.checkpoints.atomic import remove_unfinished, replaced_folder, whole_folder
from leyden.core.store.base import LightningStore
from leyden.core.trainer.export.rows import RECORDS, ROWS, RolloutOutcome, Table, has_candidates, record_rows
from leyden.core.trainer.export.table_files import FORMATS, Format, RowFile, check_installed, open_files
from leyden.core.trainer.rollouts.offline import located
from leyden.core.trainer.why.reading import run_facts_of
from leyden.core.trainer.why.trained_or_reason import RunFacts, explain

MANIFEST = "export.json"
"""File name that marks a folder as an export, which may be replaced."""
TABLES: tuple[Table, ...] = tuple(ROWS)
"""Tables exported by default, with `candidates` if there are some. Those in `RECORDS` may be requested too."""
PAGE = 1000
"""Number of rollouts per query. Spans are queried for each rollout."""

Progress = Callable[[int, int], None]
"""Callback that receives the number of exported rollouts and their total number."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a written export."""

    source: str
    """Source as the user gave it, with secrets masked."""
    format: Format
    created: float
    """Unix time in seconds."""
    rollouts_read: int
    rows: dict[Table, int]
    left_out: dict[str, int] = {}
    """Number of recorded calls that are no transitions, by reason; empty unless transitions are exported."""


async def export_run(
    source: str,
    to: str | Path,
    *,
    format: Format = "parquet",
    what: Sequence[Table] | None = None,
    replace: bool = False,
    runs: str | Path = "runs",
    progress: Progress | None = None,
) -> Exported:
    """Write the tables `what` of a run or store into the folder `to`, and return a description of the export.

    `source` is a run's name in `runs`, a run's folder, or the URI of a store. `TABLES` are about its rollouts,
    `RECORDS` about its runs. None is `TABLES`, with `candidates` if a run searched for prompts. The folder is written
    completely or not at all. Raises UsageError for an existing folder, unless `replace` is set and the folder is an
    older export. Also raises it for arguments or a source that cannot be used, and for a store without rollouts.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}; use one of {', '.join(FORMATS)}")
    tables = _chosen(TABLES if what is None else what)
    check_installed(format)
    target = Path(to)
    making = _folder(target, replace)
    location, run = await asyncio.to_thread(located, source, Path(runs))
    facts, run_id = run_facts_of(run), location.queue or None
    # The clock stands still: reading a store must not time out attempts that are running in it.
    store = await location.open(clock=lambda: 0.0)
    try:
        remove_unfinished(target.parent)
        if what is None and await has_candidates(store, run_id):
            tables.append("candidates")
        of_rollouts: list[Table] = [table for table in tables if table in TABLES]
        total = await _count(store, source) if of_rollouts else 0
        with making as folder, ExitStack() as closing:
            files = open_files(folder, format, tables)
            for file in files.values():
                closing.callback(file.close)
            done, left_out = 0, Counter[str]()
            async for outcome in _read(store, of_rollouts, facts):
                await asyncio.to_thread(_write, outcome, files)
                left_out.update(outcome.left_out if "transitions" in files else ())
                done += 1
                if progress is not None:
                    progress(done, max(done, total))
            await _write_records(store, files, run_id)
            closing.close()
            rows: dict[Table, int] = {table: file.rows for table, file in files.items()}
            exported = Exported(
                source=mask_text(source),
                format=format,
                created=time.time(),
                rollouts_read=done,
                rows=rows,
                left_out=dict(left_out.most_common()),
            )
            (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(exported), indent=2) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        await store.close()
    return exported


def _chosen(what: Sequence[Table]) -> list[Table]:
    known = (*TABLES, *RECORDS)
    if not what or not set(what) <= set(known):
        raise UsageError(f"unknown table {', '.join(set(what) - set(known))!r}; use some of {', '.join(known)}")
    return [table for table in known if table in what]


async def _count(store: LightningStore, source: str) -> int:
    """Return the number of rollouts; raises UsageError if there is none."""
    total = (await store.query_rollouts(limit=0)).complete().total
    if not total:
        records = " or ".join(f"--what {table}" for table in RECORDS)
        raise UsageError(
            f"there are no rollouts in {source}; without any, only its records can be exported ({records})"
        )
    return total


def _folder(target: Path, replace: bool) -> AbstractContextManager[Path]:
    if not target.exists():
        return whole_folder(target)
    if not replace:
        raise UsageError(
            f"{target} already exists; choose another folder, or give --replace to replace an older export"
        )
    if not (target / MANIFEST).is_file():
        raise UsageError(f"{target} is not an export (it has no {MANIFEST}), so it is not replaced")
    return replaced_folder(target)


def _write(outcome: RolloutOutcome, files: dict[Table, RowFile]) -> None:
    for table, rows in ROWS.items():
        if table in files:
            files[table].write(rows(outcome))


async def _write_records(store: LightningStore, files: dict[Table, RowFile], run_id: str | None) -> None:
    for table in RECORDS:
        if table in files:
            async for row in record_rows(store, table, run_id):
                files[table].write([row])


async def _read(store: LightningStore, tables: Sequence[Table], facts: RunFacts) -> AsyncGenerator[RolloutOutcome]:
    """Yield every rollout in order of creation, with its attempts and the spans that the tables need."""
    offset = 0
    if not tables:
        return
    while page := (await store.query_rollouts(limit=PAGE, offset=offset)).complete().items:
        for rollout in page:
            yield await _outcome(store, rollout, tables, facts)
        offset += len(page)


async def _outcome(store: LightningStore, rollout: Rollout, tables: Sequence[Table], facts: RunFacts) -> RolloutOutcome:
    rollout_id = rollout.rollout_id
    # Spans first: for an attempt that starts in between, there are then no spans without an attempt.
    name = semconv.REWARD if tables == ["rollouts"] and facts.learning is None else None
    spans = (await store.query_spans(rollout_id, name=name)).items
    attempts = (await store.query_attempts(rollout_id)).items
    return RolloutOutcome(
        rollout=rollout, attempts=attempts, spans=spans, explanation=explain(rollout, attempts, spans, facts)
    )
