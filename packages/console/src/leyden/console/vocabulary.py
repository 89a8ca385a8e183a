"""Vocabulary: the texts of a policy's tokens, read from its tokenizer's file; no model is loaded for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leyden.core.gateway.codecs.text import TextStream

FILE = "tokenizer.json"


class Vocabulary:
    """The tokenizer in a policy's folder."""

    def __init__(self, file: Path) -> None:
        import tokenizers

        self.file = file
        library: Any = tokenizers
        self._tokenizer = library.Tokenizer.from_file(str(file))

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds, which is empty where a character is not complete yet."""
        stream = TextStream(self._decode)
        found = [stream.push([one]) for one in ids]
        rest = stream.finish()
        if rest and found:
            found[-1] += rest
        return found

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def find_vocabulary(folders: Sequence[Path], policy: str | None) -> "Vocabulary | str":
    """Return the vocabulary of a policy, or one sentence about why there is none.

    `folders` are those of the run's policies, the most likely first. One with the policy's name comes before them.
    """
    ordered = sorted(folders, key=lambda folder: folder.name != policy)
    for folder in ordered:
        if (file := folder / FILE).is_file():
            try:
                return Vocabulary(file)
            except Exception as error:  # the library raises plain exceptions for a damaged file
                return f"{file} cannot be read: {' '.join(str(error).split())[:200]}"
    return "no tokenizer.json of this policy was found on this machine, so tokens are shown as ids"
