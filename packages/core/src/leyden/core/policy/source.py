"""Policy source: the folder or the hub name from which a policy is loaded. Imports neither torch nor transformers."""

from collections.abc import Iterable
from pathlib import Path

from leyden.core.errors import PolicyError, did_you_mean
from leyden.core.policy.fetch.catalogue import CATALOGUE


def check_source(source: str | Path) -> None:
    """Raise PolicyError for a path without a policy folder; other names are looked up in the hub.

    A name that is close to that of a policy folder counts as a mistyped path. For a policy that `leyden policies fetch`
    makes, the error names that command.
    """
    folder, text = Path(source), str(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PolicyError(f"{source} is not a policy folder: it has no config.json")
        return
    if folder.exists():
        raise PolicyError(f"{source} is a file, not a policy folder: give its folder, {folder.parent}")
    if folder.name in CATALOGUE:
        fetch = f"leyden policies fetch {folder.name} --to {source}"
        raise PolicyError(f"there is no policy folder {source} ({fetch} makes it)")
    beside = [path.parent.name for path in folder.parent.glob("*/config.json")]
    close = did_you_mean(folder.name, beside, text.removesuffix("/")[: -len(folder.name)])
    if close or isinstance(source, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise PolicyError(f"there is no policy folder {source}{close}")


def check_sources_of_run(sources: Iterable[str]) -> None:
    """Raise PolicyError, with what to do, unless the policies that an earlier command gave a run are here, too."""
    for source in sources:
        try:
            check_source(source)
        except PolicyError as error:
            raise PolicyError(f"{error}{where_it_counts_from(source)}") from None


def where_it_counts_from(path: str) -> str:
    """Return the end of a message that a path is missing, with which an earlier command began a run."""
    if Path(path).is_absolute():
        return ": the run began with this path, and needs it on this machine"
    return (
        f", counted from the current folder {Path.cwd()}: the run's agent, reward and initial policy must be there. "
        "Start the command in their folder, or copy them; `leyden serve` takes the folder as --project"
    )
