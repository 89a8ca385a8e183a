"""Linear layers of the fused forward pass, in the precision in which an engine keeps its weights.

Reading the weights takes most of the time of a step with few rows, so narrower weights make it faster, and so does a
layout in which they are read once. Shape suffixes: I inputs, O outputs.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.core.engine.base import EnginePrecision

FEW_ROWS = 4
"""Rows up to which a product with int8 weights is faster than one with their copy in bfloat16."""
INPUT_BLOCK = 16
"""torch's product with int8 weights reads the inputs in blocks of this size, and reads past the end of other sizes."""
LARGEST = 127
"""Largest absolute value of an int8 weight."""
CACHED_BYTES = 32 << 20
"""Size of weights that a processor's cache may hold, so that copies of them cost little."""
PACKED_ROWS = 32
"""Number of rows for which oneDNN chooses the layout of packed weights; they may be used for any number."""


class Linear:
    """y = x Wᵀ + b with a live weight (O, I), in the precision of `x`.

    With a weight in bfloat16, the product has its inputs and results in bfloat16.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        if self._weight.dtype == x.dtype:
            return F.linear(x, self._weight, self._bias)
        y = F.linear(x.to(self._weight.dtype), self._weight).to(x.dtype)
        return y if self._bias is None else y + self._bias

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of W with the given numbers, as an embedding has them."""
        return F.embedding(ids, self._weight)

    def refresh(self) -> None:
        """Follow a change of the weight."""


class PackedLinear(Linear):
    """A linear layer in float32 that also keeps its weight in the blocks that oneDNN's product reads.

    torch's usual product copies the weight into such blocks in every call. For up to 64 rows, that takes about as long
    as the product itself.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self.refresh()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        return cast(Any, torch.ops.mkldnn)._linear_pointwise.default(x, self._packed, self._bias, "none", [], "")

    def refresh(self) -> None:
        """Pack the weight again after a change."""
        with torch.no_grad():
            self._packed: Tensor = cast(Any, torch.ops.mkldnn)._reorder_linear_weight(self._weight, PACKED_ROWS)


class Int8Linear(Linear):
    """A linear layer that computes with int8 copies of its weight: W ≈ diag(scale) · Q, with a scale for each output.

    Q is kept twice: as int8 for few rows, and as bfloat16, which holds these integers exactly, for more rows and for
    sizes that torch's product with int8 weights does not support.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self._int8_OI = torch.empty_like(weight, dtype=torch.int8)
        self._wide_OI = torch.empty_like(weight, dtype=torch.bfloat16)
        self._scale_O = torch.empty_like(weight[:, 0])
        self._ones_O = torch.ones_like(self._scale_O, dtype=torch.bfloat16)
        self.refresh()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b; inputs and results of the product with Q are in bfloat16."""
        narrow = x.bfloat16()
        count, inputs = narrow.shape[:-1].numel(), narrow.shape[-1]
        if count <= FEW_ROWS and inputs % INPUT_BLOCK == 0:
            product = torch.ops.aten._weight_int8pack_mm(narrow.reshape(count, inputs), self._int8_OI, self._ones_O)
            product = product.view(*x.shape[:-1], -1)
        else:
            product = F.linear(narrow, self._wide_OI)
        y = product * self._scale_O
        return y if self._bias is None else y + self._bias

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of W with the given numbers, as an embedding has them."""
        return F.embedding(ids, self._wide_OI) * self._scale_O[ids][..., None]

    def refresh(self) -> None:
        """Round the weight again after a change."""
        torch.div(self._weight.abs().amax(1), LARGEST, out=self._scale_O)
        self._scale_O.masked_fill_(self._scale_O == 0, 1)
        self._int8_OI.copy_((self._weight / self._scale_O[:, None]).round_())
        self._wide_OI.copy_(self._int8_OI)


def linear_class(precision: EnginePrecision, model: nn.Module) -> type[Linear]:
    """Return the class of the linear layers of an engine that keeps the weights of `model` in `precision`."""
    if precision == "int8":
        return Int8Linear
    weights = list(model.parameters())
    is_wide = precision == "float32" and all(weight.dtype == torch.float32 for weight in weights)
    packs = is_wide and packs_weights(sum(weight.numel() for weight in weights), weights[0].device.type)
    return PackedLinear if packs else Linear


def packs_weights(parameters: int, device: str) -> bool:
    """Return whether an engine packs the weights of a model in float32 with so many parameters.

    It does on processors with AVX2, for models that their caches cannot hold. Those with AVX-512 were not measured.
    """
    is_measured = torch.backends.cpu.get_cpu_capability() == "AVX2" and torch.backends.mkldnn.is_available()
    return is_measured and device == "cpu" and 4 * parameters > CACHED_BYTES
