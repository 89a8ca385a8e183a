"""Image embeddings: what a vision-language model reads in place of the embeddings of placeholder tokens.

Ids from `FIRST_IMAGE_ID` on stand for tokens of images. They are keys of caches and of shared prefixes, like the ids of
text. Only the input embeddings differ: those of an image come from the model's vision part. Shape suffixes: B rows, T
tokens of a row, I tokens of an image, H width of the model.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leyden.core.data.encoding.images import FIRST_IMAGE_ID
from leyden.core.errors import EngineError

CACHED_TOKENS = 16384
"""Tokens of images whose embeddings are kept; those of the least recently read image are dropped first."""


class ReadImage(NamedTuple):
    """An image as an engine reads it."""

    first: int
    """Id of its first token; its other tokens have the ids after it."""
    start: int
    """Index in the prompt of its first token."""
    tokens: int
    pixels: NDArray[np.float32]
    """What the vision part of the model reads, (channels, height, width)."""


def with_image_ids(ids: Sequence[int], images: Sequence[ReadImage]) -> list[int]:
    """Return the ids of a prompt in which the placeholder tokens are replaced by the ids of their images."""
    found = list(ids)
    for image in images:
        found[image.start : image.start + image.tokens] = range(image.first, image.first + image.tokens)
    return found


def image_features(model: nn.Module, pixels: Sequence[NDArray[np.float32]]) -> list[Tensor]:
    """Return the embeddings of each image's tokens, (I, H); gradients reach the vision part of the model."""
    hf = cast(Any, model)
    weight: Tensor = hf.get_input_embeddings().weight
    stacked = torch.as_tensor(np.stack(pixels)).to(weight.device, weight.dtype)
    return list(hf.get_image_features(pixel_values=stacked, return_dict=True).pooler_output)


def input_embeddings(model: nn.Module, ids_BT: Tensor, features: Mapping[int, Tensor]) -> Tensor:
    """Return the input embeddings of `ids_BT`, (B, T, H); `features` has those of images by their first ids."""
    embed: nn.Module = cast(Any, model).get_input_embeddings()
    is_image_BT = ids_BT >= FIRST_IMAGE_ID
    embeddings_BTH: Tensor = embed(ids_BT.masked_fill(is_image_BT, 0))
    firsts = sorted(features)
    first_N = torch.tensor(firsts, device=ids_BT.device)
    length_N = torch.tensor([len(features[first]) for first in firsts], device=ids_BT.device)
    begin_N = length_N.cumsum(0) - length_N
    id_M = ids_BT[is_image_BT]
    image_M = torch.searchsorted(first_N, id_M, right=True) - 1
    rows_MH = torch.cat([features[first] for first in firsts])[begin_N[image_M] + id_M - first_N[image_M]]
    return embeddings_BTH.masked_scatter(is_image_BT[:, :, None], rows_MH.to(embeddings_BTH.dtype))


class ImageEmbeddings:
    """Embeddings of the images of one model's prompts, computed once for the weights being served."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._features: OrderedDict[int, Tensor] = OrderedDict()
        self._tokens = 0

    def read(self, images: Sequence[ReadImage]) -> None:
        """Compute the embeddings of `images` that are not kept; raises EngineError if their number of tokens differs.

        Those of `images` are kept at least until the next call.
        """
        wanted = {image.first: image for image in images}
        missing = [image for first, image in wanted.items() if first not in self._features]
        for image in missing:
            (found_IH,) = image_features(self._model, [image.pixels])
            if len(found_IH) != image.tokens:
                raise EngineError(f"an image has {image.tokens} placeholder tokens and {len(found_IH)} embeddings")
            self._features[image.first] = found_IH
            self._tokens += image.tokens
        for first in wanted:
            self._features.move_to_end(first)
        while self._tokens > CACHED_TOKENS and len(self._features) > len(wanted):
            self._tokens -= len(self._features.popitem(last=False)[1])

    def of(self, ids_BT: Tensor) -> Tensor | None:
        """Return the input embeddings of tokens; None if none of them stands for an image."""
        if not bool((ids_BT >= FIRST_IMAGE_ID).any()):
            return None
        return input_embeddings(self._model, ids_BT, self._features)

    def clear(self) -> None:
        """Remove all embeddings, because the weights have changed."""
        self._features.clear()
        self._tokens = 0
