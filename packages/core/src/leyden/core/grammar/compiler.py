"""`GrammarCompiler`: compiles grammars for one policy's tokenizer, and computes which tokens they allow.

The masks are a function of the grammar and of the tokens so far alone. A trainer therefore computes the same masks as
the engine did, from the recorded ids. Grammars and masks come from the library llguidance.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leyden.core.errors import GrammarError
from leyden.core.grammar.tokenizer import load_tokenizer, stop_ids

Bits: TypeAlias = NDArray[np.int32]
"""One bit for each token of the vocabulary, 32 in an integer, the lowest bit first; 1 means allowed."""

COMPILED_GRAMMARS = 128
"""Number of compiled grammars that are kept; the least recently used one is dropped first."""


class GrammarState:
    """The state of a grammar in one response: which tokens may follow. Not thread-safe."""

    def __init__(self, matcher: Any, width: int) -> None:
        self._matcher = matcher
        self.width = width
        """Number of integers in a row of mask bits."""

    @property
    def matcher(self) -> Any:
        """The library's own state."""
        return self._matcher

    def write_allowed(self, bits_W: Bits) -> None:
        """Write the bits of the tokens that may follow to `bits_W`. A finished grammar allows only the end."""
        self._matcher.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)

    def take(self, token: int) -> bool:
        """Move on by one token; return False if the grammar does not allow it, or became too complex."""
        return bool(self._matcher.consume_token(token))

    @property
    def error(self) -> str:
        """Why the state can no longer be used; empty while it can."""
        return first_sentence(self._matcher.get_error())


class MaskWriter:
    """Computes the masks of several responses in one call."""

    def __init__(self) -> None:
        self._executor: Any = None

    def allowed(self, states: Sequence[GrammarState]) -> Bits:
        """Return `bits_MW`, the tokens that may follow in each of the M responses."""
        if self._executor is None:
            import llguidance

            self._executor = llguidance.LLExecutor(1)
        bits_MW = np.zeros((len(states), states[0].width), dtype=np.int32)
        matchers = [(state.matcher, row) for row, state in enumerate(states)]
        self._executor.unsafe_compute_mask_ptr(matchers, bits_MW.ctypes.data, bits_MW[0].nbytes, len(states))
        return bits_MW


class GrammarCompiler:
    """Compiles grammars for the policy in the folder `source`, or of that hub name. Thread-safe.

    `vocab_size` is the number of the model's logits. The tokenizer is loaded when the first grammar is compiled, which
    takes up to a second. Raises GrammarError there if the tokenizer is of a kind that has no masks.
    """

    def __init__(self, source: str, vocab_size: int) -> None:
        self._source = source
        self._vocab_size = vocab_size
        self._lock = Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    @property
    def width(self) -> int:
        """Number of integers in a row of mask bits."""
        return (self._vocab_size + 31) // 32

    def begin(self, grammar: str) -> GrammarState:
        """Return the state before the first token of a response; raises GrammarError for an invalid grammar."""
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is None:
                matcher = self._compiled[grammar] = self._compile(grammar)
                if len(self._compiled) > COMPILED_GRAMMARS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return GrammarState(matcher.deep_copy(), self.width)

    def masks(self, grammar: str, response_ids: Sequence[int]) -> Bits:
        """Return `bits_TW`: the tokens that were allowed at each position of a response.

        Raises GrammarError if the grammar is invalid, or does not allow the response.
        """
        state = self.begin(grammar)
        bits_TW = np.zeros((len(response_ids), self.width), dtype=np.int32)
        for bits_W, token in zip(bits_TW, response_ids, strict=True):
            state.write_allowed(bits_W)
            if not is_allowed(bits_W, token) or not state.take(token):
                raise GrammarError(f"the response has a token that its grammar does not allow: {token}")
        return bits_TW

    def _compile(self, grammar: str) -> Any:
        import llguidance

        if self._tokenizer is None:
            self._tokenizer = self._wrapped_tokenizer()
        matcher: Any = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the grammar is invalid: {first_sentence(matcher.get_error())}")
        return matcher

    def _wrapped_tokenizer(self) -> Any:
        import llguidance.hf

        tokenizer = load_tokenizer(self._source)
        wrap: Callable[..., Any] = llguidance.hf.from_tokenizer
        try:
            return wrap(tokenizer, n_vocab=self._vocab_size, eos_token=list(stop_ids(tokenizer, self._source)))
        except Exception as error:
            reason = first_sentence(str(error))
            raise GrammarError(f"the tokenizer of {self._source} cannot be used with a grammar: {reason}") from error


def check_grammar(grammar: str) -> None:
    """Raise GrammarError if `grammar` is invalid for every tokenizer."""
    import llguidance

    validate: Callable[..., tuple[bool, list[str]]] = llguidance.LLMatcher.validate_grammar_with_warnings
    is_error, messages = validate(grammar)
    if is_error:
        raise GrammarError(first_sentence(messages[0]))


def is_allowed(bits_W: Bits, token: int) -> bool:
    """Return whether the bits allow `token`."""
    return 0 <= token < 32 * len(bits_W) and bool(int(bits_W[token // 32]) >> (token % 32) & 1)


def first_sentence(text: str) -> str:
    """Return the first line of a message of the library, at most 300 characters."""
    return text.strip().partition("\n")[0][:300]
