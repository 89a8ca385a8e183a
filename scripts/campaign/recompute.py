"""Log-probabilities recomputed by plain forward passes of the versions that a campaign's records name.

Images go through the processor and the forward pass of transformers, from the recorded files. Shape suffixes: B rows, T
places, V vocabulary.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from campaign.recorded import Files, named_images, packed, sampling_of, text
from campaign.versions import Versions
from check_record import recorded_versions
from leyden.core.data import semconv
from leyden.core.data.encoding.token_sets import TokenBits, unpack_token_sets
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span

BATCH_TOKENS = 8192
"""Tokens of one forward, padding included: their logits are what memory is needed for."""
CONTROLS = 8
"""Calls of a version that are also recomputed by a wrong version, and with wrong images."""
ROUNDING = 1e-4
"""By how much the mass of a nucleus may be off before another token is its last."""


@dataclass(kw_only=True)
class Differences:
    """Largest |recorded - recomputed| of a log-probability."""

    raw: float = 0.0
    sampling: float = 0.0
    """Of the distribution drawn from."""
    worst_call: str = ""
    tokens: int = 0
    truncated: int = 0
    """Tokens that were drawn with top-p, top-k or min-p."""
    penalised: int = 0
    """Tokens that were drawn with a penalty or a bias."""
    masked: int = 0
    """Tokens that were drawn under a grammar."""
    after_images: int = 0
    """Tokens whose prompt has images."""
    versions: int = 0
    by_a_wrong_version: float = 0.0
    """The smallest, over versions, that the recomputation by the version after it gives: far too large, or the
    recomputation could not tell versions apart."""
    by_wrong_images: float | None = None
    """The smallest, over versions, that the recomputation with the images of other calls gives; None without images."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What one version drew of a call."""

    span: Span
    prompt: int
    ids: list[int]
    """Of prompt and answer."""
    mine: range
    """Places in the answer."""
    images: Sequence[bytes | None]
    """Files of the prompt's images, in order; None for one that is not recorded."""


def recomputed(
    spans: Sequence[Span], policies: Mapping[str, Versions], files: Files, on_version: Callable[[], None]
) -> Differences:
    """Compare every recorded token with a forward pass of the version that drew it; calls `on_version` after each."""
    found = Differences()
    wrong_versions: list[float] = []
    wrong_images: list[float] = []
    for policy, drawn in _by_version(spans, files).items():
        versions = policies[policy]
        for version in sorted(drawn):
            versions.load(version)
            for batch in _batches(drawn[version]):
                _compare(versions, batch, found)
            if others := _with_images_of_others(drawn[version]):
                wrong_images.append(_largest(versions, others))
            versions.load(version + 1)
            wrong_versions.append(_largest(versions, _freest(drawn[version])))
            found.versions += 1
            on_version()
    found.by_a_wrong_version = min(wrong_versions, default=0.0)
    found.by_wrong_images = min(wrong_images, default=None)
    return found


def version_ranges(span: Span) -> list[tuple[int, int]]:
    """The versions of a recorded answer, each with how many tokens it drew."""
    flat: Any = recorded_versions(span, len(unpack_ids(packed(span, semconv.RESPONSE_IDS))))
    return list(zip(flat[::2], flat[1::2], strict=True))


def _by_version(spans: Sequence[Span], files: Files) -> dict[str, dict[int, list[_Drawn]]]:
    """Return what was drawn, by policy and version."""
    found: defaultdict[str, dict[int, list[_Drawn]]] = defaultdict(lambda: defaultdict(list))
    for span in spans:
        prompt = list(unpack_ids(packed(span, semconv.PROMPT_IDS)))
        ids = prompt + list(unpack_ids(packed(span, semconv.RESPONSE_IDS)))
        images = [files.get((span.attempt_id, digest)) for digest, _, _ in named_images(span)]
        start = 0
        for version, tokens in version_ranges(span):
            drawn = _Drawn(span, len(prompt), ids, range(start, start + tokens), images)
            found[text(span, semconv.POLICY)][version].append(drawn)
            start += tokens
    return found


def _freest(drawn: Sequence[_Drawn]) -> list[_Drawn]:
    """Return up to `CONTROLS` calls, those without a grammar first: under one, some tokens have no alternative."""
    return sorted(drawn, key=lambda one: bool(sampling_of(one.span).grammar))[:CONTROLS]


def _with_images_of_others(drawn: Sequence[_Drawn]) -> list[_Drawn]:
    """Return a batch of calls with images, in which each call has the images of another one."""
    seeing = _freest([one for one in drawn if one.images and None not in one.images])
    changed: list[_Drawn] = []
    for one in seeing:
        others = [image for other in seeing for image in other.images if image not in one.images]
        if others:
            changed.append(replace(one, images=[others[n % len(others)] for n in range(len(one.images))]))
    return changed


def _batches(drawn: Sequence[_Drawn]) -> Iterator[list[_Drawn]]:
    """Rows of about one length, so that little of a batch is padding."""
    batch: list[_Drawn] = []
    for one in sorted(drawn, key=lambda one: len(one.ids)):
        if batch and len(one.ids) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _compare(versions: Versions, batch: Sequence[_Drawn], found: Differences) -> None:
    for one in batch:
        if None in one.images:
            found.raw, found.worst_call = math.inf, f"{text(one.span, semconv.CALL_ID)} (an image is missing)"
    batch = [one for one in batch if None not in one.images]
    for one, logits_TV in zip(batch, _logits(versions, batch) if batch else (), strict=True):
        sampling = sampling_of(one.span)
        logits_TV = _allowed(one, penalised(logits_TV.float(), one, sampling), sampling, versions)
        raw_TV = logits_TV.log_softmax(-1)
        raw = _difference(one, [raw_TV], semconv.RESPONSE_LOGPROBS)
        possible = list(drawn_from(logits_TV, sampling))
        if sampling.truncates:
            possible += _as_recorded(one, possible, warm(logits_TV, sampling))
        drawn = _difference(one, possible, semconv.SAMPLING_LOGPROBS)
        if not max(raw, drawn) <= max(found.raw, found.sampling):
            found.worst_call = str(one.span.attributes[semconv.CALL_ID])
        found.raw, found.sampling = max(found.raw, raw), max(found.sampling, drawn)
        found.tokens += len(one.mine)
        found.truncated += len(one.mine) if sampling.truncates else 0
        found.penalised += len(one.mine) if sampling.penalises else 0
        found.masked += len(one.mine) if sampling.grammar else 0
        found.after_images += len(one.mine) if one.images else 0


def penalised(logits_TV: Tensor, one: _Drawn, sampling: Sampling) -> Tensor:
    """Return the logits with bias and penalties, token by token as `Sampling` describes them."""
    if not sampling.penalises:
        return logits_TV
    changed_TV = logits_TV.clone()
    for place, logits_V in zip(one.mine, changed_TV, strict=True):
        answer = Counter(one.ids[one.prompt : one.prompt + place])
        for token, bias in sampling.logit_bias:
            logits_V[token] += bias
        for token in {*one.ids[: one.prompt], *answer} if sampling.repetition_penalty != 1 else ():
            likely = float(logits_V[token]) > 0
            logits_V[token] *= 1 / sampling.repetition_penalty if likely else sampling.repetition_penalty
        for token, count in answer.items():
            logits_V[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return changed_TV


def _as_recorded(one: _Drawn, possible: list[Tensor], warm_TV: Tensor) -> Iterator[Tensor]:
    """Yield the log-probabilities over the tokens that truncation left by the record, if they are recorded.

    Of tokens that are nearly equally likely, any may be the last one. A set of another size, or without a token that is
    likelier than one within it, gives no probabilities.
    """
    sets = one.span.attributes.get(semconv.SAMPLING_KEPT)
    if not isinstance(sets, bytes):
        return
    bits_TW = unpack_token_sets(sets, len(one.ids) - one.prompt)[one.mine.start : one.mine.stop]
    kept_TV = _bits(bits_TW, warm_TV.shape[1])
    least_kept_T = warm_TV.masked_fill(~kept_TV, torch.inf).amin(-1)
    most_left_out_T = warm_TV.masked_fill(kept_TV, -torch.inf).amax(-1)
    sizes_NT = torch.stack([(one_TV > -torch.inf).sum(-1) for one_TV in possible])
    right_size_T = (sizes_NT == kept_TV.sum(-1)).any(0)
    right_T = right_size_T & (most_left_out_T <= least_kept_T + ROUNDING)
    found_TV = warm_TV.masked_fill(~kept_TV, -torch.inf).log_softmax(-1)
    yield found_TV.masked_fill(~right_T[:, None], -torch.inf)


def _bits(bits_TW: TokenBits, vocabulary: int) -> Tensor:
    bits_TV = np.unpackbits(bits_TW.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return torch.as_tensor(bits_TV) == 1


def _allowed(one: _Drawn, logits_TV: Tensor, sampling: Sampling, versions: Versions) -> Tensor:
    """Return the logits with -inf for the tokens that the call's grammar did not allow."""
    if not sampling.grammar:
        return logits_TV
    bits_TW = versions.grammars.masks(sampling.grammar, one.ids[one.prompt :])[one.mine.start : one.mine.stop]
    return logits_TV.masked_fill(~_bits(bits_TW, logits_TV.shape[-1]), -torch.inf)


def drawn_from(logits_TV: Tensor, sampling: Sampling) -> Iterator[Tensor]:
    """Yield the log-probabilities that tokens may have been drawn from: of a truncated distribution there are several.

    Which token is the last inside a nucleus can hang on rounding, so those a little smaller and larger count too.
    """
    warm_TV = warm(logits_TV, sampling)
    if not sampling.truncates:
        yield warm_TV
        return
    sorted_TV, order_TV = warm_TV.sort(dim=-1, descending=True, stable=True)
    for slack in (0.0, -ROUNDING, ROUNDING):
        kept_TV = _truncated(sorted_TV, sampling, slack)
        yield torch.empty_like(kept_TV).scatter_(-1, order_TV, kept_TV)


def warm(logits_TV: Tensor, sampling: Sampling) -> Tensor:
    """Return the log-probabilities at the temperature; those at temperature 1 for greedy decoding."""
    return (logits_TV.float() / (sampling.temperature or 1.0)).log_softmax(-1)


def _truncated(sorted_TV: Tensor, sampling: Sampling, slack: float) -> Tensor:
    """Return sorted log-probabilities after min-p, top-k and top-p; a larger `slack` leaves more."""
    kept_TV = sorted_TV
    if sampling.min_p:
        kept_TV = kept_TV.masked_fill(sorted_TV < sorted_TV[:, :1] + math.log(sampling.min_p) - slack, -torch.inf)
    if sampling.top_k:
        kept_TV = kept_TV.masked_fill(torch.arange(kept_TV.shape[1]) >= sampling.top_k, -torch.inf)
    kept_TV = kept_TV.log_softmax(-1)
    if sampling.top_p < 1:
        before_TV = kept_TV.exp().cumsum(-1) - kept_TV.exp()
        kept_TV = kept_TV.masked_fill(before_TV >= sampling.top_p + slack, -torch.inf).log_softmax(-1)
    return kept_TV


def _logits(versions: Versions, batch: Sequence[_Drawn]) -> Iterator[Tensor]:
    """Yield the logits that each `mine` was drawn from. Padding stands last, where nothing sees it."""
    ids_BT = torch.zeros(len(batch), max(len(one.ids) for one in batch), dtype=torch.long)
    for row, one in enumerate(batch):
        ids_BT[row, : len(one.ids)] = torch.tensor(one.ids)
    with torch.no_grad():
        logits_BTV = versions.model(**_inputs(versions, batch, ids_BT), use_cache=False).logits
    for row, one in enumerate(batch):
        yield logits_BTV[row, one.prompt - 1 + one.mine.start : one.prompt - 1 + one.mine.stop]


def _inputs(versions: Versions, batch: Sequence[_Drawn], ids_BT: Tensor) -> dict[str, Tensor]:
    """Return what the model reads. It puts images in the places of all placeholders itself.

    A policy may also draw a placeholder in its answer, which stands for no image. Then the images are put in the
    recorded places here.
    """
    pixels = [versions.pixels(image) for one in batch for image in one.images if image is not None]
    if not pixels:
        return {"input_ids": ids_BT}
    pixel_values = torch.stack(pixels)
    places = [(row, range(start, start + n)) for row, one in enumerate(batch) for _, start, n in named_images(one.span)]
    if int((ids_BT == versions.model.config.image_token_id).sum()) == sum(len(place) for _, place in places):
        return {"input_ids": ids_BT, "pixel_values": pixel_values}
    embeddings_BTH = versions.model.get_input_embeddings()(ids_BT)
    features = versions.model.get_image_features(pixel_values=pixel_values, return_dict=True).pooler_output
    for (row, place), features_IH in zip(places, features, strict=True):
        embeddings_BTH[row, list(place)] = features_IH
    return {"inputs_embeds": embeddings_BTH}


def _difference(one: _Drawn, possible: Iterable[Tensor], key: str) -> float:
    ids_T = torch.tensor(one.ids[one.prompt :][one.mine.start : one.mine.stop])
    recorded_T = torch.tensor(list(unpack_log_probs(packed(one.span, key))[one.mine.start : one.mine.stop]))
    return difference(ids_T, recorded_T, possible)


def difference(ids_T: Tensor, recorded_T: Tensor, possible: Iterable[Tensor]) -> float:
    """Return the largest difference between what is recorded of a token and the nearest of its `possible` TV."""
    differences_NT = torch.stack([(one_TV.gather(1, ids_T[:, None])[:, 0] - recorded_T).abs() for one_TV in possible])
    largest = float(differences_NT.amin(0).max())
    return largest if largest == largest else float("inf")  # not a number is as wrong as can be


def _largest(versions: Versions, batch: Sequence[_Drawn]) -> float:
    """Return the largest difference of a raw log-probability in a batch."""
    found = Differences()
    _compare(versions, batch, found)
    return found.raw
