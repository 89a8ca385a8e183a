"""A token prefix that many sequences share, read once per update, with exact gradients. Knows nothing of losses.

The keys and values of the prefix are leaves of every micro-batch's graph. Each backward pass adds to their gradients,
and one last pass carries the sums back through the prefix, so the result is that of reading it in every sequence.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from leyden.core.policy.model import PolicyModel


class SharedPrefix:
    """The keys and values of one prefix, kept with the graph that made them."""

    def __init__(self, keys_values: Sequence[Tensor]) -> None:
        self._made = list(keys_values)
        self._leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._made]

    @classmethod
    def read(cls, model: PolicyModel, ids: Iterable[int]) -> "SharedPrefix | None":
        """Run the model over `ids`; None when it keeps anything else than plain keys and values of every layer."""
        from transformers.cache_utils import DynamicLayer

        none = torch.empty(0, dtype=torch.long, device=model.device)
        ids_1P = torch.tensor([list(ids)], device=model.device)
        with model.computing(), model.selecting(none, none, logits=False):
            cache: Any = model.module(input_ids=ids_1P, use_cache=True).past_key_values
        layers = getattr(cache, "layers", [])
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            return None
        return cls([tensor for layer in layers for tensor in (layer.keys, layer.values)])

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return self._leaves[0].shape[-2]

    def cache(self, rows: int) -> Any:
        """Return a `transformers` cache in which each of `rows` sequences has read the prefix."""
        from transformers.cache_utils import DynamicCache

        wide = [leaf.expand(rows, -1, -1, -1) for leaf in self._leaves]
        return DynamicCache(list(zip(wide[0::2], wide[1::2], strict=True)))

    def backward(self) -> None:
        """Carry what the micro-batches' backward passes left at the prefix back to the weights; call it once, last."""
        reached = [
            (made, leaf.grad) for made, leaf in zip(self._made, self._leaves, strict=True) if leaf.grad is not None
        ]
        if reached:
            torch.autograd.backward([made for made, _ in reached], [gradient for _, gradient in reached])
