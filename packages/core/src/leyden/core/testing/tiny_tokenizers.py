"""Tiny byte-level tokenizers with any chat template, for tests of rendering and decoding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import transformers

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = ["the naïve calculator adds one and two 🙂"] * 20


def save_tiny_tokenizer(path: Path, template: str | None, special: Sequence[str] = CHATML, end: str = "") -> None:
    """Train a byte-level BPE tokenizer on a line of text and save it to `path` with `template`.

    `special` are its control tokens. An answer ends with `end`, or with the last of them.
    """
    library: Any = tokenizers
    backend: Any = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    alphabet: Any = library.pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = library.trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    fast: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=special[0], eos_token=end or special[-1], pad_token=special[0]
    )
    fast.chat_template = template
    fast.save_pretrained(str(path))
