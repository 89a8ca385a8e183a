"""Tokenizer of a policy: loads it without running code of the checkpoint, and finds the tokens that end an answer."""

from collections.abc import Iterable
from typing import Any, cast

from leyden.core.errors import PolicyError

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Tokens that end a turn in known templates, for checkpoints with another end-of-sequence token."""


def load_tokenizer(source: str) -> Any:
    """Return the tokenizer in a folder or of a hub name; raises PolicyError if it cannot be loaded."""
    import transformers  # imported here, because it takes seconds and most processes never encode

    auto: Any = transformers.AutoTokenizer
    try:
        return auto.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise PolicyError(f"policy {source!r}: its tokenizer cannot be loaded ({reason})") from error


def template_text(tokenizer: Any) -> str:
    """Return the text of the chat template, or of all of them if there are several; empty without one."""
    template: object = tokenizer.chat_template
    if isinstance(template, dict):
        return "\n".join(cast("dict[str, str]", template).values())
    return str(template or "")


def stop_ids(tokenizer: Any, source: str) -> tuple[int, ...]:
    """Return the ids that end an answer: of the generation config, of the tokenizer, and of the template's turns."""
    return tuple(dict.fromkeys(_stop_ids(tokenizer, source)))


def _stop_ids(tokenizer: Any, source: str) -> Iterable[int]:
    import transformers

    config: Any = transformers.GenerationConfig
    try:
        configured: int | list[int] | None = config.from_pretrained(source).eos_token_id
    except OSError:
        configured = None  # many checkpoints have no generation config
    yield from [configured] if isinstance(configured, int) else configured or []
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id
    template, vocabulary = template_text(tokenizer), cast("dict[str, int]", tokenizer.get_vocab())
    yield from (vocabulary[end] for end in TURN_ENDS if end in template and end in vocabulary)
