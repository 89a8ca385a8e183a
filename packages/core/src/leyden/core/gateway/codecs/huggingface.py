"""`HuggingFaceCodec`: a `Codec` that uses a checkpoint's tokenizer and chat template.

It runs no Python code from the checkpoint (`trust_remote_code=False`).
"""

import hashlib
import re
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, cast

import msgspec

from leyden.core.data.encoding.images import PromptImage
from leyden.core.errors import GatewayError, GrammarError, ImageError, PolicyError, first_line
from leyden.core.gateway.codec import AnswerParser, Codec, Forced, ImageFile, Message, ParsedAnswer, ToolDefinition
from leyden.core.gateway.codecs.chat_template import MOST_STEPS, ChatTemplate, Steps, TemplateTooLong, limited
from leyden.core.gateway.codecs.messages import plain_messages
from leyden.core.gateway.reasoning import (
    END_THINK,
    THINK,
    ReasoningForm,
    ReasoningSplitter,
    opened_reasoning,
    reasoning_form,
)
from leyden.core.gateway.tools.call_grammar import calls_grammar
from leyden.core.gateway.tools.family import ToolFamily, answer_parser, parse_answer
from leyden.core.gateway.tools.registry import tool_family
from leyden.core.grammar.rules import AnswerFormat, text_rule
from leyden.core.grammar.tokenizer import load_tokenizer, stop_ids, template_text
from leyden.core.images.processor import ImageProcessor

CACHED_PROMPTS, CACHED_BYTES = 512, 32 << 20
_LOSSLESS = frozenset({
    "ByteLevel", "Digits", "Metaspace", "NFC", "Prepend", "Regex", "Sequence", "Split", "String",
})  # fmt: skip
"""Names of tokenizer components that drop no text."""
_SPACE_REPLACEMENT = 'Replace(pattern=String(" "), content="▁")'
CLOSED_REASONING = f"{END_THINK}\n\n"
"""Text that closes reasoning which a prompt opens."""
LONGEST_OPENING = 32
"""Most ids at the end of a prompt that may be the opening of the reasoning."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: "array[int]"
    opens_reasoning: bool
    """Whether the prompt ends with the tag that opens the model's reasoning."""


class HuggingFaceCodec(Codec):
    """Codec with the tokenizer, chat template and end tokens of a folder or of a hub name.

    Raises PolicyError if they cannot be loaded or there is no chat template.
    """

    def __init__(self, source: str | Path) -> None:
        self._tokenizer = load_tokenizer(str(source))
        self._template = template_text(self._tokenizer)
        if not self._template:
            raise PolicyError(f"policy {str(source)!r} has no chat template: choose a chat model, or add one to it")
        self._chat_template = ChatTemplate(self._tokenizer)
        self._family = tool_family(self._template)
        self._stop_ids = stop_ids(self._tokenizer, str(source))
        self._reasons = END_THINK in self._template
        self._form: ReasoningForm | None = None
        marks = (*(self._family.tokens if self._family else ()), *((THINK, END_THINK) if self._reasons else ()))
        self._hidden_ids = _control_token_ids(self._tokenizer, marks)
        self._mark_ids = _mark_ids(self._tokenizer, self._family)
        self._prompts: OrderedDict[bytes, _Prompt] = OrderedDict()
        self._prompt_bytes = 0
        self._prompts_lock = Lock()
        self._longest = _longest_token(self._tokenizer)
        self._ids("")  # The first call changes the tokenizer's settings, so it must run before threads share it.
        self._bytes_of = _byte_alphabet() if _is_byte_level(self._tokenizer) else None
        self._images = ImageProcessor.find(str(source))
        self._always_parts = self._images is not None and not self._renders_text()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the end tokens of the generation config, of the tokenizer, and of the template's turns."""
        return self._stop_ids

    @property
    def longest_token(self) -> int | None:
        """Most bytes of text that one token represents.

        None except for byte-level and byte-fallback vocabularies that drop no text: others may encode any text as one
        token.
        """
        return self._longest

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        *,
        formatted: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render the messages with the chat template; return the token ids. Recent prompts are cached.

        The opening of a forced call is encoded separately and appended. So the prompt's own ids equal those of other
        calls with the same messages, and the prefix stays shared in the engine's cache and in training. If the prompt
        opens the model's reasoning, the reasoning is closed first, because a forced call has no reasoning before it.

        The cache helps because the rollouts of a group begin with the same prompt. Raises GatewayError if the template
        rejects the messages, or if a call is forced and the template's format of tool calls is unknown.
        """
        prompt = self._prompt(messages, tools, variables or {})
        closing = CLOSED_REASONING if prompt.opens_reasoning else ""
        if forced is None:
            return [*prompt.ids, *(self._continuation(closing) if closing and formatted else ())]
        if self._family is None:
            raise GatewayError(
                "No tool call can be forced: the format of tool calls in this model's chat template is unknown"
            )
        return [*prompt.ids, *self._continuation(closing + self._family.opening(forced))]

    @property
    def takes_images(self) -> bool:
        """Whether the model reads images."""
        return self._images is not None

    def image_tokens(self, digest: str, data: bytes) -> int:
        """Return how many placeholder tokens an image file has in a prompt; ImageError for an invalid file."""
        if self._images is None:
            raise ImageError("the policy's model reads no images")
        return self._images.tokens(self._images.pixels(digest, data))

    def place_images(
        self, ids: Sequence[int], images: Sequence[ImageFile]
    ) -> tuple[list[int], tuple[PromptImage, ...]]:
        """Return the ids of a prompt with the placeholder tokens of its images, and where these are.

        Raises GatewayError unless the template has written one mark for each image.
        """
        assert self._images is not None
        marks = ids.count(self._images.token)
        if marks < len(images):
            raise GatewayError(
                "The chat template of this model leaves out an image. Send images only in messages of the user"
            )
        if marks > len(images):
            raise GatewayError(
                f"The text of the messages contains '{self._images.mark}', which stands for an image in this model's "
                "prompts. Remove it from the text"
            )
        found: list[int] = []
        placed: list[PromptImage] = []
        left = iter(images)
        for token in ids:
            if token != self._images.token:
                found.append(token)
                continue
            image = next(left)
            placed.append(PromptImage(digest=image.digest, data=image.data, start=len(found), tokens=image.tokens))
            found += [token] * image.tokens
        return found, tuple(placed)

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        forced: Forced | None,
        answer_format: AnswerFormat | None,
        *,
        only_one_call: bool = False,
    ) -> str:
        """Return the grammar of an answer with a forced call or a required format; see `Codec.grammar`.

        The arguments of forced calls follow their tools' schemas, in families that write them as JSON.
        """
        if forced is None and answer_format is None:
            return ""
        if getattr(self._tokenizer, "backend_tokenizer", None) is None:  # masks need a tokenizer of this kind
            if answer_format is not None and forced is None:
                raise GrammarError("the model's tokenizer has no vocabulary from which masks can be made")
            return ""
        if self._family is None or not tools:
            return "" if answer_format is None else answer_format.grammar()
        syntax = self._family.syntax
        if syntax is not None:
            opening = "" if forced is None else self._family.opening(forced)
            calls = calls_grammar(syntax, tools, forced, opening, self._literal, only_one=only_one_call)
        else:
            calls = [f"calls: {self._literal(self._family.bare or self._family.mark)} /(?s:.*)/"]
        if forced is not None:
            return "" if syntax is None else "\n".join(["start: calls", *calls])
        assert answer_format is not None
        return "\n".join(["start: answer | calls", f"answer: {answer_format.rule()}", *calls])

    def _literal(self, text: str) -> str:
        """Return the grammar's expression of a text, in which the marks of calls may be control tokens."""
        marks = self._mark_ids
        parts = re.split("(" + "|".join(map(re.escape, marks)) + ")", text) if marks else [text]
        return " ".join(f"<[{marks[part]}]>" if part in marks else text_rule(part) for part in parts if part)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a text as the tokenizer encodes it, with the special tokens that it adds by itself.

        An empty text gives the token that begins a document, or else the one that ends it.
        """
        ids = list(self._tokenizer(text)["input_ids"])
        first = (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id)
        return ids or [token for token in first if token is not None][:1]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, without control tokens but with the marks of tool calls and of reasoning."""
        kept = [token for token in ids if token not in self._hidden_ids]
        return self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def parse(self, text: str, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> ParsedAnswer:
        """Split an answer into content and tool calls, in the format of the template's tool family."""
        return parse_answer(self.parser(tools, forced), text)

    def parser(self, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> AnswerParser:
        """Return a parser of the template's tool family for one streamed answer."""
        return answer_parser(self._family, tools, forced)

    def reasoning(self, prompt_ids: Sequence[int]) -> ReasoningSplitter | None:
        """Return a splitter in the form of the template; None if the template has no reasoning."""
        if not self._reasons:
            return None
        end = self._tokenizer.decode(list(prompt_ids[-LONGEST_OPENING:]), clean_up_tokenization_spaces=False)
        return ReasoningSplitter(self._reasoning_form(), opened_reasoning(end))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of a token; exact for byte-level vocabularies, else the bytes of its decoded text."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if self._bytes_of is None or token is None or not all(char in self._bytes_of for char in token):
            return super().token_bytes(token_id)
        return bytes(self._bytes_of[char] for char in token)

    def _prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], variables: Mapping[str, Any]
    ) -> _Prompt:
        key = hashlib.sha256(msgspec.json.encode((messages, tools, variables))).digest()
        with self._prompts_lock:
            prompt = self._prompts.get(key)
            if prompt is not None:
                self._prompts.move_to_end(key)
                return prompt
        text = self._render(messages, tools, variables)
        prompt = _Prompt(array("i", self._ids(text)), opens_reasoning=text.rstrip().endswith(THINK))
        with self._prompts_lock:
            if key in self._prompts:  # another thread has added the prompt meanwhile
                return self._prompts[key]
            self._prompts[key] = prompt
            self._prompt_bytes += _size(prompt)
            while len(self._prompts) > CACHED_PROMPTS or self._prompt_bytes > CACHED_BYTES:
                self._prompt_bytes -= _size(self._prompts.popitem(last=False)[1])
            return prompt

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], variables: Mapping[str, Any]
    ) -> str:
        """Render the messages; after a TypeError, render once more with the arguments of tool calls as text.

        Most templates need the arguments as objects, but templates that join strings with `+` need text.
        """
        parts = self._always_parts
        try:
            try:
                return self._apply(plain_messages(messages, always_parts=parts), tools, variables)
            except TypeError:
                plain = plain_messages(messages, arguments_as_text=True, always_parts=parts)
                return self._apply(plain, tools, variables)
        except TemplateTooLong as error:
            raise TemplateTooLong(
                f"The chat template of this model does not finish for these messages: {error}"
            ) from None
        except Exception as error:  # a template from an unknown author may raise any exception
            raise GatewayError(
                f"The chat template of this model cannot render these messages: {first_line(error)}"
            ) from error

    def _renders_text(self) -> bool:
        """Return whether the template renders a content that is a text; some render only lists of parts."""
        probe = "a text of the user"
        try:
            return probe in self._chat_template.render([{"role": "user", "content": probe}], [])
        except Exception:  # a template from an unknown author may raise any exception
            return False

    def _apply(self, messages: list[Message], tools: Sequence[ToolDefinition], variables: Mapping[str, Any]) -> str:
        if self._reasons:
            form = self._reasoning_form()
            messages = [form.message(message) for message in messages]
        return self._rendered(messages, tools, variables)

    def _reasoning_form(self) -> ReasoningForm:
        """Return the form of the template's reasoning; it is read from the template at its first use."""
        if self._form is None:
            with limited(Steps(MOST_STEPS)):  # the limits of one request must not change what is read for all
                self._form = reasoning_form(lambda messages: self._rendered(messages, (), {}))
        return self._form

    def _rendered(self, messages: list[Message], tools: Sequence[ToolDefinition], variables: Mapping[str, Any]) -> str:
        if self._family is not None:
            messages = self._family.messages(messages, self._template)
        return self._chat_template.render(messages, tools, variables)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _continuation(self, text: str) -> list[int]:
        """Encode text that continues other text; some tokenizers would add a space before the first text."""
        prefix_ids, all_ids = self._ids("\n"), self._ids(f"\n{text}")
        return all_ids[len(prefix_ids) :] if all_ids[: len(prefix_ids)] == prefix_ids else self._ids(text)


def _size(prompt: _Prompt) -> int:
    return len(prompt.ids) * prompt.ids.itemsize


def _control_token_ids(tokenizer: Any, marks: Sequence[str]) -> frozenset[int]:
    """Return the ids of control tokens: all special tokens except the marks of tool calls."""
    added = cast("dict[int, Any]", tokenizer.added_tokens_decoder)
    special = {token_id for token_id, token in added.items() if token.special} | set(tokenizer.all_special_ids)
    vocabulary = cast("dict[str, int]", tokenizer.get_vocab())
    return frozenset(special - {vocabulary[mark] for mark in marks if mark in vocabulary})


def _mark_ids(tokenizer: Any, family: ToolFamily | None) -> dict[str, int]:
    """Return the ids of the marks of calls that are added tokens: a grammar names them by their ids.

    Whether such a token is special differs between a tokenizer's files. The grammar library may then write it where the
    text is required, and not recognize it as that text.
    """
    added = cast("dict[int, Any]", tokenizer.added_tokens_decoder)
    ids = {token.content: token_id for token_id, token in added.items()}
    return {mark: ids[mark] for mark in (family.tokens if family else ()) if mark in ids}


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in str(getattr(backend, "decoder", ""))


def _longest_token(tokenizer: Any) -> int | None:
    """Return the most bytes of text that one token represents.

    Returns None if the tokenizer may drop text, or may encode text of any length as one token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = cast("dict[int, Any]", tokenizer.added_tokens_decoder)
    if backend is None or any(token.lstrip or token.rstrip for token in added.values()):
        return None
    parts = f"{backend.normalizer} {backend.pre_tokenizer}"
    others = parts.replace(_SPACE_REPLACEMENT, "")  # any other replacement could shorten the text
    if "Removed" in others or not set(re.findall(r"\b([A-Z]\w+)\(", others)) <= _LOSSLESS:
        return None
    vocabulary = cast("dict[str, int]", tokenizer.get_vocab())
    if _is_byte_level(tokenizer):
        byte_tokens, size = set(_byte_alphabet()), max(map(len, vocabulary))
    else:
        byte_tokens, size = {f"<0x{byte:02X}>" for byte in range(256)}, max(len(token.encode()) for token in vocabulary)
        if not getattr(backend.model, "byte_fallback", False):
            return None
    if not byte_tokens <= vocabulary.keys():
        return None
    longest = max(size, *(len(token.content.encode()) for token in added.values()), 1)
    return 3 * longest if "NFC(" in parts else longest  # NFC may shorten a text to a third of its bytes


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character in byte-level vocabularies (the inverse of GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
