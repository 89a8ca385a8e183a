"""Self-check: compares an engine's forward pass with the model's own before the engine serves anything."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leyden.core.data.encoding.images import FIRST_IMAGE_ID
from leyden.core.engine.base import AMPLIFIED, EnginePrecision
from leyden.core.engine.embedded.cache import BLOCK, PrefixCache, SlotCache
from leyden.core.engine.embedded.decoder import Decoder
from leyden.core.engine.embedded.generic_forward import LONGEST_CHECK, Forward, attention_windows
from leyden.core.engine.embedded.image_embeddings import ReadImage
from leyden.core.engine.embedded.shared_prefixes import SharedPrefixes
from leyden.core.errors import EngineError
from leyden.core.images.processor import ImageProcessor

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Largest allowed difference of log-probabilities by precision."""
HALF_TOLERANCE = 0.5
OWN_DIFFERENCES = 3.0
"""Differences are also allowed up to so many times those between two of the model's own forward passes. Rounding errors
depend on how many tokens are computed together. For some tokens, usually unlikely ones, the layers of a model amplify
them: SmolLM2-135M after fine-tuning has 0.0017."""
MOST_TOLERANCES = 10.0
"""Whatever the model's own differences are, a difference of more than so many tolerances is not due to rounding."""
ROUNDED_TOLERANCE = {"bfloat16": 2.0, "int8": 4.0}
"""Largest allowed difference, over the whole vocabulary, of a forward pass that was exact before its weights were
rounded. The tokens of random sequences are unlikely, and rounding moves unlikely tokens most. At the share `AMPLIFIED`
of the positions, any difference is allowed: after the fine-tuning that is described there, weights in bfloat16 differ
by 11 at one position of 65, and by at most 0.4 at the others."""
SHARED_LENGTH = 24
"""Tokens of the shared beginning of test sequences, unless a sliding window needs more."""
STEPS = 3
"""Tokens of each test sequence that are decoded one at a time."""


@dataclass(frozen=True)
class Expected:
    """Random sequences, and the log-probabilities (T, V) that the model's own forward pass gives for each."""

    rows: list[list[int]]
    """Sequences of different lengths, one longer than the sliding window if that is short."""
    rows_TV: list[Tensor]
    shared_length: int
    """Tokens of the beginning that every second one of `shared` has in common."""
    shared: list[list[int]]
    shared_TV: list[Tensor]
    own_difference: float
    """Largest difference of the model's own log-probabilities of a prompt, computed alone and with what follows."""

    @classmethod
    def of(cls, model: nn.Module) -> "Expected":
        """Compute the expected log-probabilities of a model in the precision that it has now."""
        long = _length_beyond_window(model)
        rows = _random_ids(model, [5, 19, 41] + ([long] if long else []), seed=0)
        rows_TV = [_plain(model, row) for row in rows]
        pairs = zip(rows, rows_TV, strict=True)
        own = max(_errors(_plain(model, row[:-STEPS]), own_TV).max().item() for row, own_TV in pairs)
        length = long or SHARED_LENGTH
        starts = _random_ids(model, [length, length], seed=1)
        shared = [starts[n % 2] + end for n, end in enumerate(_random_ids(model, [2, 4, 7, 3], seed=2))]
        return cls(rows, rows_TV, length, shared, [_plain(model, row) for row in shared], own)


def check_forward(
    expected: Expected, forward: Forward, cache: SlotCache, prefixes: PrefixCache, precision: EnginePrecision
) -> None:
    """Raise EngineError unless `forward` gives the expected log-probabilities.

    Prompts of different lengths are prefilled together, decoded together, and scored with and without a cached prefix.
    Prompts with a shared beginning are decoded together. Weights in `precision`, and rounding errors as those of the
    model's own forward pass, may explain a difference.
    """
    rows = expected.rows
    decoder = Decoder(forward, cache, prefixes)
    prompts = [row[:-STEPS] for row in rows]
    got = [torch.cat(list(decoder.forced(0, [prompt], [0], LONGEST_CHECK)), 1)[0] for prompt in prompts]
    found = [_errors(served, own_TV) for served, own_TV in zip(got, expected.rows_TV, strict=True)]
    batched = torch.cat(list(decoder.forced(0, prompts, [0] * len(rows), 1 << 20)), 1)
    found += [_errors(batched[n, : len(p)], expected.rows_TV[n]) for n, p in enumerate(prompts)]
    for step in range(-STEPS, 0):
        starts = [len(row) + step for row in rows]
        (logits,) = decoder.forced(0, [[row[step]] for row in rows], starts, 1 << 20)
        found += [_errors(logits[n], expected.rows_TV[n][start:]) for n, start in enumerate(starts)]
    for _ in range(2):
        scores = torch.tensor(decoder.score(rows[-1]))
        targets = torch.tensor(rows[-1][1:])[:, None]
        found.append((scores - expected.rows_TV[-1][:-1].cpu().gather(1, targets)[:, 0]).abs())
    found += _errors_with_shared_prefixes(expected, forward, cache, decoder)
    decoder.flush()
    errors = torch.cat([one.cpu() for one in found])
    tolerance = ROUNDED_TOLERANCE.get(precision) or TOLERANCE.get(cache.shape.dtype, HALF_TOLERANCE)
    own = min(OWN_DIFFERENCES * expected.own_difference, MOST_TOLERANCES * tolerance)
    usual = most = max(tolerance, own)
    if precision in ROUNDED_TOLERANCE:
        most = torch.finfo(errors.dtype).max
    elif cache.shape.dtype in TOLERANCE:
        most = MOST_TOLERANCES * tolerance
    unusual = ~(errors <= usual)
    if not (errors <= most).all() or unusual.float().mean() > AMPLIFIED:
        worst = errors.nan_to_num(float("inf"), float("inf")).max().item()
        raise EngineError(
            f"the served log-probabilities would differ from the model's own by up to {worst:.3g}, at "
            f"{int(unusual.sum())} of {len(errors)} positions by more than {usual:.3g}"
        )


def check_images(model: nn.Module, decoder: Decoder, processor: ImageProcessor) -> None:
    """Raise EngineError unless prompts with images give the model's own log-probabilities.

    Two prompts with equal text and different images are prefilled together, and then again with their cached prefixes.
    """
    hf = cast(Any, model)
    images = _random_images(processor)
    tokens = processor.tokens(images[0])
    before, after = _random_ids(model, [7, 2 * BLOCK], seed=3)
    prompt = [*before, *[processor.token] * tokens, *(token for token in after if token != processor.token)]
    first = FIRST_IMAGE_ID
    read = [ReadImage(first + n * tokens, len(before), tokens, pixels) for n, pixels in enumerate(images)]
    expected: list[Tensor] = []
    for pixels in images:
        given = torch.as_tensor(pixels)[None].to(hf.device, hf.dtype)
        logits: Tensor = hf(
            input_ids=torch.tensor([prompt], device=hf.device), pixel_values=given, use_cache=False
        ).logits
        expected.append(logits[0].float().log_softmax(-1))
    worst = max(
        (decoder.next_logprobs(prompt, image).cpu() - expected_TV[-1].cpu()).abs().max().item()
        for _ in range(2)
        for image, expected_TV in zip(read, expected, strict=True)
    )
    decoder.flush()
    if not worst <= TOLERANCE.get(hf.dtype, HALF_TOLERANCE):
        raise EngineError(f"log-probabilities after an image would differ from the model's own by up to {worst:.3g}")


def _random_images(processor: ImageProcessor) -> list[NDArray[np.float32]]:
    """Return what the model reads of two pictures of random pixels."""
    generator = np.random.default_rng(0)
    return [processor.prepared(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(2)]


def _errors_with_shared_prefixes(
    expected: Expected, forward: Forward, cache: SlotCache, decoder: Decoder
) -> list[Tensor]:
    """Return the errors of the last tokens of two pairs of sequences, each pair with a shared beginning."""
    rows = expected.shared
    for _ in decoder.forced(0, [row[:-1] for row in rows], [0] * len(rows), 1 << 20):
        continue  # `check_forward` checks these logits
    shared = SharedPrefixes.of([[0, 2], [1, 3]], expected.shared_length)
    step = cache.step(0, [[len(row) - 1] for row in rows], shared)
    logits = forward(torch.tensor([[row[-1]] for row in rows], device=cache.shape.device), step)
    return [_errors(logits[n], own_TV[-1:]) for n, own_TV in enumerate(expected.shared_TV)]


def _length_beyond_window(model: nn.Module) -> int:
    """Return a length that exceeds the model's sliding window; 0 if there is no short one."""
    config = cast(Any, model).config.get_text_config()
    window = max((w for w in attention_windows(config).values() if w is not None), default=0)
    return window + 9 if 32 < window <= LONGEST_CHECK else 0


def _random_ids(model: nn.Module, lengths: Sequence[int], seed: int) -> list[list[int]]:
    generator, vocabulary = random.Random(seed), cast(Any, model).config.get_text_config().vocab_size
    return [[generator.randrange(vocabulary) for _ in range(length)] for length in lengths]


def _plain(model: nn.Module, ids: Sequence[int]) -> Tensor:
    hf = cast(Any, model)
    logits: Tensor = hf(input_ids=torch.tensor([ids], device=hf.device), use_cache=False).logits
    return logits[0].float().log_softmax(-1)


def _errors(logits_QV: Tensor, expected_TV: Tensor) -> Tensor:
    """Return the largest error of the log-probabilities at each position (Q,)."""
    return (logits_QV.float().log_softmax(-1) - expected_TV[: len(logits_QV)]).abs().amax(-1)
