"""Finite languages: the tokens that a grammar with few answers allows, found by trying all answers.

A reference for tests of grammars, which uses no grammar library.
"""

from collections.abc import Sequence
from pathlib import Path

from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SIZE = 400
"""Number of logits of a policy with the tokenizer that `save` writes; some have no token."""


class FiniteLanguage:
    """The `answers` that are possible, in the tokens of the tokenizer in `folder`."""

    def __init__(self, folder: Path, answers: Sequence[str]) -> None:
        codec = HuggingFaceCodec(folder)
        self.answers = [answer.encode() for answer in answers]
        self.ends = codec.stop_ids
        texts = {token: codec.token_bytes(token) for token in range(SIZE)}
        self._texts = {token: text for token, text in texts.items() if text and not text.startswith(b"<|")}

    @staticmethod
    def save(folder: Path) -> Path:
        """Write a tokenizer to `folder`, and return it."""
        save_tiny_tokenizer(folder, TEMPLATE)
        return folder

    def text(self, ids: Sequence[int]) -> bytes:
        """Return the text of tokens that do not end an answer."""
        return b"".join(self._texts[token] for token in ids if token not in self.ends)

    def allowed(self, ids: Sequence[int]) -> set[int]:
        """Return the tokens that may follow `ids`; llguidance allows only one of them where `is_forced`."""
        text = self.text(ids)
        found = {
            token for token, more in self._texts.items() if any(one.startswith(text + more) for one in self.answers)
        }
        return found | (set(self.ends) if text in self.answers else set())

    def is_forced(self, ids: Sequence[int]) -> bool:
        """Whether all answers go on from `ids` with the same byte."""
        text = self.text(ids)
        return len({one[len(text) : len(text) + 1] for one in self.answers if one.startswith(text)}) == 1
