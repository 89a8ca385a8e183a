"""Continuous batching: decodes many sequences together, which join and leave between decode steps.

All work happens on one thread. A sequence's row number is its slot in the cache. When a sequence leaves, the last row
moves to its slot.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from leyden.core.data.encoding.token_sets import TokenBits
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import FinishReason
from leyden.core.engine.embedded.adjusted_logits import ResponseSoFar, adjusted
from leyden.core.engine.embedded.cache import BLOCK, PrefixCache, SlotCache, Step
from leyden.core.engine.embedded.generic_forward import Forward
from leyden.core.engine.embedded.grammar_masks import GrammarMasks, RowGrammar
from leyden.core.engine.embedded.image_embeddings import ImageEmbeddings, ReadImage, with_image_ids
from leyden.core.engine.embedded.sampling import likeliest, raw_log_probs, sample
from leyden.core.engine.embedded.shared_prefixes import SharedPrefixes, find_shared_prefixes, packed
from leyden.core.errors import EngineError
from leyden.core.grammar.compiler import Bits

PREFILL_TOKENS = 4096
"""Most tokens in one prefill forward pass, padding included."""
SCORE_TOKENS = 256
"""Most tokens whose logits over the whole vocabulary are held at once."""
MASK_CELLS = 1 << 25
"""Most cells of one forward pass's attention mask."""
SHARED_DTYPES = (torch.float32, torch.float64)
"""Precisions in which a shared beginning may be read separately; others would round the weights between two sums."""


class DecodedSequence:
    """A sequence being decoded, and the tokens sampled since the last `take`."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int,
        stop_ids: Sequence[int] = (),
        seed: int = 0,
        top_logprobs: int = 0,
        grammar: RowGrammar | None = None,
        images: Sequence[ReadImage] = (),
    ) -> None:
        self.ids = with_image_ids(prompt, images)
        """Prompt and response so far; tokens of images have the ids of their images."""
        self.prompt = packed(self.ids)
        self.images = images
        self.sampling = sampling
        self.uniform = random.Random(seed).random
        """Generator of the uniform number that selects the next token."""
        self.finish_reason: FinishReason | None = None
        self.sampled: list[tuple[int, float, float]] = []
        """Id, raw log-probability and sampling log-probability of each new token."""
        self.top_logprobs = top_logprobs
        self.top: list[list[tuple[int, float]]] = []
        """The likeliest ids at the position of each token in `sampled`, if requested."""
        self.failure = ""
        """Why this response alone was aborted: it cannot follow its grammar. Empty if it was not."""
        self.grammar = grammar
        self.so_far = ResponseSoFar(prompt, sampling) if sampling.adjusts_logits else None
        """The tokens that change the next logits; None if only the temperature and truncation apply."""
        self.kept: list[TokenBits] = []
        """The tokens that truncation left at the position of each token in `sampled`, if it truncates."""
        self._last = len(prompt) + limit
        self._stop_ids = frozenset((*stop_ids, *sampling.stop_ids))

    def append(self, token: int, logprob: float, sampling_logprob: float) -> None:
        """Record a sampled token, and whether it is the last."""
        self.ids.append(token)
        self.sampled.append((token, logprob, sampling_logprob))
        if token in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.ids) >= self._last:
            self.finish_reason = "length"
        elif self.so_far is not None:
            self.so_far.take(token)
            if self.grammar is not None:
                self.grammar.take(token)

    def abort(self, failure: str) -> None:
        """End the response with an error."""
        self.failure, self.finish_reason = failure, "abort"

    def take(self) -> list[tuple[int, float, float]]:
        """Return the tokens sampled since the last call."""
        sampled, self.sampled = self.sampled, []
        return sampled

    def take_top(self) -> list[list[tuple[int, float]]] | None:
        """Return the likeliest ids at the positions since the last call; None if not requested."""
        top, self.top = self.top, []
        return top if self.top_logprobs else None

    def take_kept(self) -> TokenBits | None:
        """Return the sets of tokens that truncation left since the last call; None if nothing is truncated."""
        kept, self.kept = self.kept, []
        return np.stack(kept) if kept else None


class Decoder:
    """Decodes any number of sequences together. Not thread-safe."""

    def __init__(
        self, forward: Forward, cache: SlotCache, prefixes: PrefixCache, images: ImageEmbeddings | None = None
    ) -> None:
        self._forward = forward
        self._images = images
        self._cache = cache
        self._prefixes = prefixes
        self._masks = GrammarMasks()
        self.rows: list[DecodedSequence] = []
        """The sequences being decoded, by slot."""
        self._shared_prefixes: SharedPrefixes | None = None
        self._shared_rows: list[DecodedSequence] = []
        """The rows for which `_shared_prefixes` was computed."""

    def prefill(self, sequences: Sequence[DecodedSequence]) -> None:
        """Add `sequences`, and sample the next token of each; common prefixes are computed once."""
        duplicates: dict[tuple[int, ...], list[DecodedSequence]] = {}
        for sequence in sequences:
            duplicates.setdefault(tuple(sequence.ids), []).append(sequence)
        first = len(self.rows)
        self._cache.reserve(first + len(sequences), max(len(s.ids) for s in sequences))
        waiting = [group[0] for group in duplicates.values()]
        logits: list[Tensor] = []
        while waiting:
            wave, waiting = self._wave(waiting)
            logits += [self._join(batch) for batch in _batches(wave)]
        logits_BV = torch.cat(logits)
        sources: list[int] = []
        for row, leader in enumerate(self.rows[first:], first):
            for duplicate in duplicates[tuple(leader.ids)][1:]:
                self._cache.copy(row, len(self.rows), len(duplicate.ids))
                self.rows.append(duplicate)
                sources.append(row - first)
        logits_BV = torch.cat([logits_BV, logits_BV[sources]]) if sources else logits_BV
        self._masks.begin([row.grammar for row in self.rows[first:]])
        self._sample(first, logits_BV)

    def step(self) -> None:
        """Sample the next token of every row, except of rows whose grammar's mask takes long.

        The logits of such a row are computed again in the next step, from the same tokens.
        """
        self._masks.begin([row.grammar for row in self.rows])
        ids = [[row.ids[-1]] for row in self.rows]
        step = self._cache.step(0, [[len(row.ids) - 1] for row in self.rows], self._current_shared_prefixes())
        self._sample(0, self._forward(self._tensor(ids), step)[:, -1])

    def leave(self, sequence: DecodedSequence) -> None:
        """Free the slot of `sequence`."""
        row, last = self.rows.index(sequence), len(self.rows) - 1
        if row != last:
            self._cache.copy(last, row, len(self.rows[last].ids))
        self.rows[row] = self.rows[last]
        self.rows.pop()

    def flush(self) -> list[DecodedSequence]:
        """Discard everything computed; return the sequences that were being decoded, which must be prefilled again."""
        rows, self.rows = self.rows, []
        if self._images is not None:
            self._images.clear()
        self._prefixes.flush()
        self._cache.clear()
        return rows

    def close(self) -> None:
        """End the threads that compute the masks of grammars."""
        self._masks.close()

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the raw log-probability of each of `ids[1:]`.

        For the tokens after a cached prefix, the prefix is used, as it is for a response. The cache holds no logits for
        the prefix itself, so these are computed again. A wrong cached prefix is therefore visible in the result.
        """
        slot, context = len(self.rows), list(ids[:-1])
        block_indices = self._prefixes.match(context[:-1])
        cached = len(block_indices) * BLOCK
        scores = self._score_from(slot, ids, 0, cached or len(context)) if context else []
        if cached:
            self._prefixes.load(block_indices, self._cache, slot)
            scores += self._score_from(slot, ids, cached, len(context))
        self._prefixes.store(context, self._cache, slot)
        return scores

    def next_logprobs(self, prompt: Sequence[int], image: ReadImage) -> Tensor:
        """Return the raw log-probabilities of the token after a prompt with an image, (V), as for a response."""
        row = DecodedSequence(prompt, Sampling(), limit=1, images=[image])
        self._cache.reserve(len(self.rows) + 1, len(row.ids))
        logits_BV = self._join([row])
        self.leave(row)
        return raw_log_probs(logits_BV.float())[0]

    def forced(self, slot: int, rows: Sequence[Sequence[int]], starts: Sequence[int], chunk: int) -> Iterator[Tensor]:
        """Compute `rows` of tokens that follow `starts` cached ones; yield logits of all tokens, in chunks (B, Q, V).

        Shorter rows repeat their last token at its own position, which changes nothing.
        """
        for ids, step in self._chunks(slot, rows, starts, chunk):
            yield self._forward(ids, step, every=True)

    def _chunks(
        self, slot: int, rows: Sequence[Sequence[int]], starts: Sequence[int], chunk: int
    ) -> Iterator[tuple[Tensor, Step]]:
        longest, width = max(map(len, rows)), max(s + len(r) for s, r in zip(starts, rows, strict=True))
        size = max(1, min(chunk, MASK_CELLS // width) // len(rows))
        for begin in range(0, longest, size):
            columns = [[min(n, len(row) - 1) for n in range(begin, min(begin + size, longest))] for row in rows]
            ids = [[row[n] for n in row_columns] for row, row_columns in zip(rows, columns, strict=True)]
            positions = [[start + n for n in row_columns] for start, row_columns in zip(starts, columns, strict=True)]
            yield self._tensor(ids), self._cache.step(slot, positions)

    def _score_from(self, slot: int, ids: Sequence[int], begin: int, end: int) -> list[float]:
        """Return the scores of `ids[begin + 1 : end + 1]`, given that the slot holds the tokens before `begin`."""
        targets = self._tensor(list(ids[begin + 1 : end + 1]))
        scores: list[float] = []
        for logits in self.forced(slot, [ids[begin:end]], [begin], SCORE_TOKENS):
            part = targets[len(scores) : len(scores) + logits.shape[1]]
            scores += cast(Any, logits[0].float().log_softmax(-1).gather(1, part[:, None])[:, 0]).tolist()
        return scores

    def _current_shared_prefixes(self) -> SharedPrefixes | None:
        """Return the beginnings that rows share, if reading them once saves time; None on GPUs (not measured)."""
        shape = self._cache.shape
        if shape.device.type != "cpu" or shape.dtype not in SHARED_DTYPES:
            return None
        if self._shared_rows != self.rows:
            self._shared_rows = list(self.rows)
            column_bytes = 2 * shape.heads * shape.head_dim * shape.dtype.itemsize
            self._shared_prefixes = find_shared_prefixes([row.prompt for row in self.rows], column_bytes)
        return self._shared_prefixes

    def _wave(self, waiting: list[DecodedSequence]) -> tuple[list[tuple[int, DecodedSequence]], list[DecodedSequence]]:
        """Split off sequences that share no uncached block with an earlier one; the others will find it in the cache.

        The sequences that are split off have the number of tokens to compute beside them.
        """
        claimed: set[object] = set()
        wave: list[tuple[int, DecodedSequence]] = []
        later: list[DecodedSequence] = []
        for sequence in waiting:
            key = self._prefixes.first_unknown(sequence.ids[:-1])
            if key is not None and key in claimed:
                later.append(sequence)
                continue
            claimed.add(key)
            cached = len(self._prefixes.match(sequence.ids[:-1])) * BLOCK
            wave.append((len(sequence.ids) - cached, sequence))
        return wave, later

    def _join(self, batch: list[DecodedSequence]) -> Tensor:
        """Compute the prompts of `batch` into new rows; return the logits of the next token of each (B, V)."""
        first, starts = len(self.rows), list[int]()
        for slot, sequence in enumerate(batch, first):
            block_indices = self._prefixes.match(sequence.ids[:-1])
            self._prefixes.load(block_indices, self._cache, slot)
            starts.append(len(block_indices) * BLOCK)
        self.rows += batch
        if self._images is not None:
            self._images.read([image for sequence in batch for image in sequence.images])
        rows = [sequence.ids[start:] for sequence, start in zip(batch, starts, strict=True)]
        logits: Tensor | None = None
        for ids, step in self._chunks(first, rows, starts, PREFILL_TOKENS):
            logits = self._forward(ids, step)
        assert logits is not None
        for slot, sequence in enumerate(batch, first):
            self._prefixes.store(sequence.ids, self._cache, slot)
        return logits[:, -1]

    def _sample(self, first: int, logits_BV: Tensor) -> None:
        joined = self.rows[first:]
        ready = self._masks.ready([row.grammar for row in joined])
        for index, error in ready.failed.items():
            joined[index].abort(f"the response cannot follow its grammar: {error}")
        if ready.rows:
            chosen = logits_BV if len(ready.rows) == len(joined) else logits_BV[ready.rows]
            self._sample_rows([joined[index] for index in ready.rows], chosen, ready.masks)
        for row in joined:
            if row.finish_reason is not None:
                self._prefixes.store(row.ids[:-1], self._cache, self.rows.index(row))
                self.leave(row)

    def _sample_rows(self, rows: list[DecodedSequence], logits_BV: Tensor, masks: list[Bits | None]) -> None:
        adjustments = [
            None if row.so_far is None else row.so_far.adjustment(bits_W)
            for row, bits_W in zip(rows, masks, strict=True)
        ]
        raw_BV = raw_log_probs(adjusted(logits_BV.float(), adjustments))
        sampled = sample(raw_BV, [row.sampling for row in rows], [row.uniform() for row in rows])
        if not math.isfinite(sum(sampled.logprobs)):
            raise EngineError("the weights being served give log-probabilities that are not finite")
        ids, logprobs, sampling_logprobs, kept = sampled
        for row, token, logprob, sampling_logprob in zip(rows, ids, logprobs, sampling_logprobs, strict=True):
            row.append(token, logprob, sampling_logprob)
        for n, bits_W in kept.items():
            rows[n].kept.append(bits_W)
        if with_top := [n for n, row in enumerate(rows) if row.top_logprobs]:
            found = likeliest(raw_BV[with_top], [rows[n].top_logprobs for n in with_top])
            for n, top in zip(with_top, found, strict=True):
                rows[n].top.append(top)

    def _tensor(self, ids: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(ids, device=self._cache.shape.device)


def _batches(sequences: list[tuple[int, DecodedSequence]]) -> Iterator[list[DecodedSequence]]:
    """Yield groups with similar numbers of tokens to compute, so that padding stays below half of them."""
    batch: list[DecodedSequence] = []
    shortest = 0
    for length, sequence in sorted(sequences, key=lambda pair: pair[0]):
        if batch and (length > 2 * shortest + BLOCK or length * (len(batch) + 1) > PREFILL_TOKENS):
            yield batch
            batch = []
        shortest = shortest if batch else length
        batch.append(sequence)
    if batch:
        yield batch
