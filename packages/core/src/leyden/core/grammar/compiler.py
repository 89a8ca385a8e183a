"""`GrammarCompiler`: compiles grammars for one policy's tokenizer, and computes which tokens they allow.

The masks are a function of the grammar and of the tokens so far alone. A trainer therefore computes the same masks as
the engine did, from the recorded ids. Grammars and masks come from the library llguidance.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leyden.core.errors import GrammarError
from leyden.core.grammar.tokenizer import load_tokenizer, stop_ids

Bits: TypeAlias = NDArray[np.int32]
"""One bit for each token of the vocabulary, 32 in an integer, the lowest bit first; 1 means allowed."""

COMPILED_GRAMMARS = 64
"""Number of compiled grammars that are kept; the least recently used one is dropped first."""
MAX_GRAMMAR_CHARACTERS = 128 << 10
"""Length of the longest grammar; the time to compile one grows faster than its length."""
LIMITS: Mapping[str, int | bool] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
"""llguidance's limits on the work for one grammar and for one token; about a quarter of its defaults.

The engine and the trainer must use the same limits: a response that exceeds them has no masks.
"""


class GrammarState:
    """The state of a grammar in one response: which tokens may follow. Not thread-safe."""

    def __init__(self, compiled: Any, width: int) -> None:
        self._compiled = compiled
        self._matcher: Any = None
        """Copy of `compiled`, made on the thread that computes the first mask."""
        self._taken: list[int] = []
        self.width = width
        """Number of integers in a row of mask bits."""
        self.error = ""
        """Why the state can no longer be used; empty while it can."""

    def take(self, token: int) -> None:
        """Add a token to the response; the grammar moves on at the next `write_allowed`."""
        self._taken.append(token)

    def write_allowed(self, bits_W: Bits) -> bool:
        """Write the bits of the tokens that may follow to `bits_W`. A finished grammar allows only the end.

        Returns False, and sets `error`, if the tokens so far do not fit the grammar, if it became too complex, or if no
        token may follow.
        """
        if (matcher := self.advance()) is not None:
            try:
                matcher.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)
                self.check_mask(any_allowed=bool(bits_W.any()))
            except BaseException as error:
                self.error = str(_of_a_panic(error))
        return not self.error

    def advance(self) -> Any | None:
        """Move the grammar on by the tokens that were taken; return the matcher, or None if the state has an error."""
        taken, self._taken = self._taken, []
        try:
            if self._matcher is None:
                self._matcher = self._compiled.deep_copy()
            if not self.error and taken and not self._matcher.consume_tokens(taken):
                self.error = first_sentence(self._matcher.get_error()) or "a token does not fit the grammar"
        except BaseException as error:
            self.error = str(_of_a_panic(error))
        return None if self.error else self._matcher

    def check_mask(self, *, any_allowed: bool) -> None:
        """Set `error` if the matcher failed when it computed a mask, or if the mask allows no token."""
        if self._matcher.is_error():
            self.error = first_sentence(self._matcher.get_error()) or "the grammar failed"
        elif not any_allowed:
            self.error = "the grammar allows no token here"


def write_allowed_together(states: Sequence[GrammarState], bits_RW: Bits, *, parallel: bool) -> None:
    """Do for each state and its row of `bits_RW` what `GrammarState.write_allowed` does.

    With `parallel`, one call of the library computes all masks on several threads, and releases the interpreter once.
    """
    matchers = [(matcher, row) for row, state in enumerate(states) if (matcher := state.advance()) is not None]
    address, row_bytes = bits_RW.ctypes.data, bits_RW.strides[0]
    try:
        if parallel:
            _executor().unsafe_compute_mask_ptr(matchers, address, row_bytes, len(bits_RW))
        else:
            for matcher, row in matchers:
                matcher.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)
    except BaseException as error:
        _of_a_panic(error)
        for _, row in matchers:  # each by itself, because the panic belongs to one of them
            states[row].write_allowed(bits_RW[row])
        return
    any_allowed_R: NDArray[np.bool_] = np.any(bits_RW, axis=1)
    for _, row in matchers:
        states[row].check_mask(any_allowed=bool(any_allowed_R[row]))


@cache
def _executor() -> Any:
    import llguidance

    return llguidance.LLExecutor(num_threads=max(1, (os.cpu_count() or 1) // 2))


class GrammarCompiler:
    """Compiles grammars for the policy in the folder `source`, or of that hub name. Thread-safe.

    `vocab_size` is the number of the model's logits. The tokenizer is loaded when the first grammar is compiled, which
    takes up to a second. Raises GrammarError there if the tokenizer is of a kind that has no masks.
    """

    def __init__(self, source: str, vocab_size: int) -> None:
        self._source = source
        self._vocab_size = vocab_size
        self._lock = Lock()
        """Guards `_compiled`."""
        self._loading = Lock()
        """Held while the tokenizer is loaded, and while a grammar is compiled: one hostile grammar costs one core."""
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        """The matcher of each grammar before its first token, or the GrammarError that it gave."""

    @property
    def width(self) -> int:
        """Number of integers in a row of mask bits."""
        return (self._vocab_size + 31) // 32

    def begin_at_once(self, grammar: str) -> GrammarState | None:
        """Return what `begin` returns if the grammar was compiled before, else None; this takes little time."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None:
                return None
            self._compiled.move_to_end(grammar)
        if isinstance(compiled, GrammarError):
            raise GrammarError(str(compiled))
        return GrammarState(compiled, self.width)

    def begin(self, grammar: str) -> GrammarState:
        """Return the state before the first token of a response; raises GrammarError for an invalid grammar.

        The first time, a grammar is compiled, and its first mask computed: a grammar that is too complex fails here.
        """
        state = self.begin_at_once(grammar)
        if state is not None:
            return state
        with self._loading:
            if grammar not in self._compiled:  # another thread may have compiled it meanwhile
                compiled = self._compile(grammar)
                with self._lock:
                    self._compiled[grammar] = compiled
                    if len(self._compiled) > COMPILED_GRAMMARS:
                        self._compiled.popitem(last=False)
        return self.begin(grammar)

    def masks(self, grammar: str, response_ids: Sequence[int]) -> Bits:
        """Return `bits_TW`: the tokens that were allowed at each position of a response.

        Raises GrammarError if the grammar is invalid, or does not allow the response.
        """
        state = self.begin(grammar)
        bits_TW = np.zeros((len(response_ids), self.width), dtype=np.int32)
        for bits_W, token in zip(bits_TW, response_ids, strict=True):
            if not state.write_allowed(bits_W):
                raise GrammarError(f"the grammar cannot be followed through the response: {state.error}")
            if not is_allowed(bits_W, token):
                raise GrammarError(f"the response has a token that its grammar does not allow: {token}")
            state.take(token)
        return bits_TW

    def _compile(self, grammar: str) -> Any:
        """Return the matcher of a grammar, or the GrammarError that it gives.

        Raises GrammarError if no grammar at all can be used.
        """
        import llguidance

        if self._tokenizer is None:
            self._tokenizer = self._wrapped_tokenizer()
        try:
            check_size(grammar)
            matcher: Any = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_limits())
            if matcher.is_error():
                raise GrammarError(f"the grammar is invalid: {first_sentence(matcher.get_error())}")
            first = GrammarState(matcher, self.width)
            if not first.write_allowed(np.zeros(self.width, dtype=np.int32)):
                raise GrammarError(f"the grammar cannot be followed: {first.error}")
        except GrammarError as error:
            return error
        except BaseException as error:
            return _of_a_panic(error)
        return matcher

    def _wrapped_tokenizer(self) -> Any:
        import llguidance.hf

        tokenizer = load_tokenizer(self._source)
        wrap: Callable[..., Any] = llguidance.hf.from_tokenizer
        try:
            return wrap(tokenizer, n_vocab=self._vocab_size, eos_token=list(stop_ids(tokenizer, self._source)))
        except Exception as error:  # the library raises its own errors as plain exceptions
            reason = first_sentence(str(error))
            raise GrammarError(f"the tokenizer of {self._source} cannot be used with a grammar: {reason}") from error


def check_grammar(grammar: str) -> None:
    """Raise GrammarError if `grammar` is invalid for every tokenizer. This may take a second."""
    import llguidance

    check_size(grammar)
    validate: Callable[..., tuple[bool, list[str]]] = llguidance.LLMatcher.validate_grammar_with_warnings
    try:
        is_error, messages = validate(grammar, limits=_limits())
    except ValueError as error:  # text that is not Unicode
        raise GrammarError(first_sentence(str(error))) from None
    except BaseException as error:
        raise _of_a_panic(error) from None
    if is_error:
        raise GrammarError(first_sentence(messages[0]))


def _of_a_panic(error: BaseException) -> GrammarError:
    """Return the GrammarError for a panic of the library, which is no `Exception`; raises every other error again."""
    if type(error).__name__ != "PanicException":
        raise error
    return GrammarError(f"the grammar library failed: {first_sentence(str(error))}")


def check_size(text: str) -> None:
    """Raise GrammarError for a grammar, or a part of one, that is too long."""
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise GrammarError(f"it has {len(text)} characters; at most {MAX_GRAMMAR_CHARACTERS} are possible")


def _limits() -> Any:
    import llguidance

    make: Any = llguidance.LLParserLimits
    return make(**LIMITS)


def is_allowed(bits_W: Bits, token: int) -> bool:
    """Return whether the bits allow `token`."""
    return 0 <= token < 32 * len(bits_W) and bool(int(bits_W[token // 32]) >> (token % 32) & 1)


def first_sentence(text: str) -> str:
    """Return the first line of a message of the library, at most 300 characters."""
    return text.strip().partition("\n")[0][:300]
