"""Facts of a run's folder: which rollouts were trained; read again only if a file has changed."""

from pathlib import Path

from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.why.reading import run_facts_of
from leyden.core.trainer.why.trained_or_reason import RunFacts


class FolderFacts:
    """The facts of one folder. The same object is returned until they change."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._known: tuple[tuple[object, ...], RunFacts] | None = None

    def read(self) -> RunFacts:
        """Return the facts."""
        folder = self._folder
        files = (folder.learned_file, folder.metrics_file, *end_files(folder))
        stamp = (folder.is_in_use(), *map(changed, files))
        if self._known is None or self._known[0] != stamp:
            self._known = (stamp, run_facts_of(folder))
        return self._known[1]


def end_files(folder: RunFolder) -> tuple[Path, ...]:
    """Return the files that say how a run or its last session ended."""
    return (folder.report_file, folder.failed_file, folder.session_error_file, folder.session_stop_file)


def changed(path: Path) -> tuple[int, int, int] | None:
    """Return what differs when the file has changed, or another has taken its place; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
