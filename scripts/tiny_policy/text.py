"""The policy's tokenizer and chat template, and how a trace becomes ids and labels."""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, PreTrainedTokenizerFast

from tiny_policy.traces import Call, Trace

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
SPECIAL = PAD, _, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PAD_ID, END_ID = 0, 2
TAGS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
IGNORED = -100


@dataclass(frozen=True)
class Example:
    """One dialogue to learn from: `labels` repeats the ids the expert wrote and is IGNORED elsewhere."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]


def render(tokenizer: PreTrainedTokenizerFast, call: Call, *, answered: bool) -> str:
    """Text of a call's prompt, with the expert's answer or up to where it begins."""
    messages = [*call.messages, call.answer] if answered else list(call.messages)
    text = tokenizer.apply_chat_template(
        messages, tools=list(call.tools), add_generation_prompt=not answered, tokenize=False
    )
    assert isinstance(text, str)
    return text


def build_tokenizer(
    traces: Sequence[Trace], vocabulary: int = 768, split: str | None = None
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the traces of at most `vocabulary` tokens, with every digit a token of its own.

    The regular expression `split` matches the words, over whose ends no token reaches; default: those of GPT-2.
    """
    template_only = _wrap(Tokenizer(models.BPE()))
    bpe = Tokenizer(models.BPE())
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None),
    ]
    if split is not None:
        splits.insert(0, pre_tokenizers.Split(Regex(split), "isolated"))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(splits)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TAGS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (render(template_only, call, answered=True) for trace in traces for call in _last_calls(trace))
    bpe.train_from_iterator(texts, trainer)
    return _wrap(bpe)


def _last_calls(trace: Trace) -> list[Call]:
    """Return the calls whose conversation no later call of the trace continues."""
    continued = [
        any(later.messages[: len(call.messages)] == call.messages for later in trace[n + 1 :])
        for n, call in enumerate(trace)
    ]
    return [call for call, goes_on in zip(trace, continued, strict=True) if not goes_on]


def _wrap(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD)
    tags: list[str | AddedToken] = [AddedToken(tag, special=False, normalized=False) for tag in TAGS]
    tokenizer.add_tokens(tags)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of a text that already holds its special tokens."""
    return tokenizer.encode(text, add_special_tokens=False)


def build_examples(tokenizer: PreTrainedTokenizerFast, traces: Iterable[Trace]) -> list[Example]:
    """One example per trace; where a call does not extend the one before it exactly, a further one begins."""
    return [found for trace in traces for found in _examples(tokenizer, trace)]


def _examples(tokenizer: PreTrainedTokenizerFast, trace: Trace) -> list[Example]:
    found: list[Example] = []
    ids: list[int] = []
    labels: list[int] = []
    for call in trace:
        prompt = encode(tokenizer, render(tokenizer, call, answered=False))
        dialogue = encode(tokenizer, render(tokenizer, call, answered=True))
        answer = dialogue[len(prompt) :]
        answer = answer[: answer.index(END_ID) + 1]
        assert dialogue[: len(prompt)] == prompt, "the template changes a prompt when it is answered"
        if prompt[: len(ids)] != ids:
            found.append(Example(tuple(ids), tuple(labels)))
            ids, labels = [], []
        labels += [IGNORED] * (len(prompt) - len(ids)) + answer
        ids = prompt + answer
    return [*found, Example(tuple(ids), tuple(labels))]


def shared_prefix(examples: Sequence[Example]) -> int:
    """How many leading ids all examples have in common."""
    shortest = min(len(example.ids) for example in examples)
    first = examples[0].ids
    differs: Any = (
        position
        for position in range(shortest)
        if any(example.ids[position] != first[position] for example in examples)
    )
    return next(differs, shortest)
