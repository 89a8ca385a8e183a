"""Sources of reward functions: where an import string leads to, its text, and the files beside it. Imports nothing."""

import ast
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import decode_source
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import RunError, UsageError
from leyden.core.masking import mask_text

MOST_CHARACTERS = 200_000
"""Longest text of a reward that is shown or scored."""
MOST_FILES = 100
"""Number of files beside a reward that are read."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a reward function."""

    source: str
    """The part of the import string before the colon, such as `rewards/math.py` or `rewards.math`."""
    function: str
    file: Path
    """Absolute path; it need not exist."""
    root: Path
    """Folder that is first on `sys.path` when the file is loaded."""
    package: str = ""
    """Dotted name of its package; empty for a file that is loaded by its path."""

    @property
    def reference(self) -> str:
        """The import string."""
        return f"{self.source}:{self.function}"

    def beside(self, file: Path) -> str:
        """Return the part before the colon of the import string of a file in the same folder."""
        if self.source.endswith(".py"):
            return str(Path(self.source).with_name(file.name))
        return f"{self.package}.{file.stem}" if self.package else file.stem


class FunctionFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Python file and the functions in it that can be called as `score(task, result)`."""

    source: str
    functions: list[str]


class RewardSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows about the reward of a run."""

    own: str | None
    """Import string of the run's own reward; None if it has none."""
    weights: dict[str, float]
    """The run's weights of the dimensions of its reward."""
    source: str = ""
    """The file that is shown, as an import string without its function."""
    function: str = ""
    functions: list[str] = []
    text: str = ""
    problem: str = ""
    """Why there is no text; empty if there is."""
    files: list[FunctionFile] = []
    """The files in the folder of the own reward, the own one first."""
    command: str = ""
    """Command that scores the run with another reward."""


def place_of(reference: str) -> Place:
    """Return where an import string leads to, relative to the working directory; raises UsageError if nowhere.

    A module is looked up without importing its package.
    """
    source, colon, function = reference.rpartition(":")
    if not (colon and source and function):
        raise UsageError(f"{reference!r} names no reward: write path/to/file.py:function or package.module:function")
    if source.endswith(".py") or "/" in source:
        file = Path(source).resolve()
        return Place(source=source, function=function, file=file, root=file.parent)
    found = _module_file(source)
    if found is None:
        raise UsageError(f"there is no Python file of the module {source} in {Path.cwd()} or among installed packages")
    file, is_package = found
    package = source if is_package else source.rpartition(".")[0]
    root = file.parents[len(package.split(".")) if package else 0]
    return Place(source=source, function=function, file=file, root=root, package=package)


def text_of(file: Path) -> str:
    """Return the text of a Python file, in the encoding that it declares; raises UsageError if there is none."""
    if file.suffix != ".py":  # a run's folder may come from someone else, and name any file of this machine
        raise UsageError(f"{file} is no Python file")
    return decoded(file)


def decoded(file: Path) -> str:
    """Return a Python text from a file of any name, in the encoding that it declares; raises UsageError for none."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    try:
        data = file.read_bytes()
        if len(data) > MOST_CHARACTERS:
            raise UsageError(f"{file} has {len(data):,} bytes; this page shows files of at most {MOST_CHARACTERS:,}")
        return decode_source(data)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def check_text(text: str) -> None:
    """Raise ValueError, with the line, if a text is not Python. Nothing of it is run."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the reward has {len(text):,} characters; {MOST_CHARACTERS:,} are possible")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "reward", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"the reward is not Python: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the reward is not Python: {error}") from None


def functions_of(text: str) -> list[str]:
    """Return the names of a text's functions that can be called as `score(task, result)`; empty if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and _takes_two(node.args)
    ]


def files_beside(place: Place) -> list[FunctionFile]:
    """Return the file of a place, and the files in its folder that have functions which may be rewards."""
    return [FunctionFile(source=place.source, functions=_functions_in(place.file)), *_others(place)]


def reward_source(
    own: str | None, weights: dict[str, float], chosen: str, command: str, *, alone: bool
) -> RewardSource:
    """Return what a page shows about a run's reward: the file `chosen`, or the run's own if that is empty.

    With `alone`, only the run's own file can be read, and secrets in its text are masked. Raises RunError for a file
    that is not in the folder of the run's own reward.
    """
    known = RewardSource(own=own, weights=weights, command=command)
    if own is None:
        return known
    try:
        place = place_of(own)
    except UsageError as error:
        return msgspec.structs.replace(known, problem=str(error))
    files = [] if alone else files_beside(place)
    if chosen and chosen not in (place.source, *(one.source for one in files)):
        raise RunError(f"{chosen} has no reward, or is not in the folder of the run's reward")
    shown = place if chosen in ("", place.source) else place_of(f"{chosen}:{place.function}")
    try:
        text = text_of(shown.file)
    except UsageError as error:
        problem = f"{error}; start the console in the folder in which the run was started"
        return msgspec.structs.replace(known, source=shown.source, function=shown.function, problem=problem)
    functions = functions_of(text)
    is_there = shown is place or shown.function in functions or not functions
    return msgspec.structs.replace(
        known,
        source=shown.source,
        function=shown.function if is_there else functions[0],
        functions=functions,
        text=mask_text(text) if alone else text,
        files=files,
    )


def _others(place: Place) -> Iterator[FunctionFile]:
    files = sorted(place.file.parent.glob("*.py")) if place.file.parent.is_dir() else []
    for file in [file for file in files if file.name not in (place.file.name, "__init__.py")][:MOST_FILES]:
        if functions := _functions_in(file):
            yield FunctionFile(source=place.beside(file), functions=functions)


def _functions_in(file: Path) -> list[str]:
    try:
        return functions_of(text_of(file))
    except UsageError:
        return []


def _takes_two(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    needs_names = any(default is None for default in arguments.kw_defaults)
    return required <= 2 and (positional >= 2 or arguments.vararg is not None) and not needs_names


def _module_file(name: str) -> tuple[Path, bool] | None:
    """Return the file of a module, and whether it is that of a package."""
    path: Any = [str(Path.cwd()), *sys.path]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for number in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: number + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and number + 1 < len(parts):
            return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve(), spec.submodule_search_locations is not None
