"""Shared prefix: computes a token prefix of many sequences once per update, with exact gradients.

The keys and values of the prefix are leaves of every micro-batch's graph. Each backward pass adds to their gradients.
One last pass propagates the sums through the prefix. The result is the same as computing the prefix in every sequence.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leyden.core.data.encoding.images import PromptImage
from leyden.core.policy.model import PolicyModel


class SharedPrefix:
    """The keys and values of one prefix, with the autograd graph that computed them."""

    def __init__(self, keys_values: Sequence[Tensor]) -> None:
        self._made = list(keys_values)
        self._leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._made]

    @classmethod
    def read(
        cls, model: PolicyModel, ids: Iterable[int], images: Mapping[int, PromptImage] | None = None
    ) -> "SharedPrefix | None":
        """Run the model over `ids` and return the prefix; `images` are those of the ids beyond the vocabulary.

        Returns None if the model's cache holds anything but plain keys and values of every layer.
        """
        from transformers.cache_utils import DynamicLayer

        none = torch.empty(0, dtype=torch.long, device=model.device)
        ids_1P = torch.tensor([list(ids)], device=model.device)
        with model.computing(), model.selecting(none, none, logits=False):
            cache: Any = model.module(**model.inputs(ids_1P, images or {}), use_cache=True).past_key_values
        layers = getattr(cache, "layers", [])
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            return None
        return cls([tensor for layer in layers for tensor in (layer.keys, layer.values)])

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self._leaves[0].shape[-2]

    def cache(self, rows: int) -> Any:
        """Return a `transformers` cache in which each of `rows` sequences already has the prefix."""
        from transformers.cache_utils import DynamicCache

        wide = [leaf.expand(rows, -1, -1, -1) for leaf in self._leaves]
        return DynamicCache(list(zip(wide[0::2], wide[1::2], strict=True)))

    def backward(self) -> None:
        """Propagate the gradients of all micro-batches through the prefix to the weights; call it once, last."""
        reached = [
            (made, leaf.grad) for made, leaf in zip(self._made, self._leaves, strict=True) if leaf.grad is not None
        ]
        if reached:
            torch.autograd.backward([made for made, _ in reached], [gradient for _, gradient in reached])
