"""Edited rewards: a text in a job's folder that is loaded as if it were the file that it is an edit of.

`write_edited` writes the text and, beside it, a file that Leyden loads as the reward. That file calls `load`, which
executes the text with the original's `__file__`, package and import path. Imports of the original's neighbours and
files that are found relative to `__file__` therefore work as they do for the original.
"""

import importlib
import io
import sys
import tokenize
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from leyden.console.reward_source import Place

TEXT = "edited_text"
"""Name of the file with the text."""
NAME = "edited text"
"""Name of the text in errors."""


def write_edited(folder: Path, place: Place, text: str) -> str:
    """Write the text of an edited reward into a folder; returns the import string with which Leyden loads it."""
    (folder / TEXT).write_bytes(encoded(text))
    name = place.file.name if place.file.stem.isidentifier() else "reward.py"
    given = f"file={str(place.file)!r}, root={str(place.root)!r}, package={place.package!r}"
    module = f'"""Stands in for {name}."""\n\nfrom {__name__} import load\n\nload(globals(), {given})\n'
    (folder / name).write_text(module, encoding="utf-8")
    return f"{folder / name}:{place.function}"


def encoded(text: str) -> bytes:
    """Return a Python text in the encoding that it declares, UTF-8 if it declares none; raises ValueError if unfit."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text.encode()).readline)
        return text.encode(encoding.removesuffix("-sig"))
    except (SyntaxError, UnicodeEncodeError) as error:
        raise ValueError(f"the reward's text does not fit its encoding: {error}") from None


def load(module: dict[str, Any], *, file: str, root: str, package: str) -> None:
    """Execute the text beside the calling module in that module's namespace, in the place of the file `file`."""
    folder, name = Path(module["__file__"]).parent, module["__name__"]
    text = (folder / TEXT).read_bytes()
    for own in [own for own in module if not own.startswith("__")]:
        del module[own]
    after_own = sys.path.index(str(folder)) + 1 if str(folder) in sys.path else 0
    sys.path.insert(after_own, root)
    module["__file__"] = file
    if package:
        importlib.import_module(package)
        stem = Path(file).stem
        full = package if stem == "__init__" else f"{package}.{stem}"
        module["__name__"], module["__package__"] = full, package
        module["__spec__"] = ModuleSpec(full, None, origin=file)
        sys.modules[full] = sys.modules[name]
    exec(compile(text, NAME, "exec", dont_inherit=True), module)
