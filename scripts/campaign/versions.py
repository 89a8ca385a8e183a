"""`Versions`: the weights of every policy version of a campaign, each the first ones and noise of its own.

A version's weights follow from its number, so none need be kept.
"""

from functools import cached_property, lru_cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from leyden.core.engine.embedded.weights import load_model
from leyden.core.grammar.compiler import GrammarCompiler

STRENGTH = 0.05
"""Standard deviation of the noise, as a share of each weight's own: other answers, and still a model that answers."""


class Versions:
    """Version 0 is the policy as it was saved."""

    def __init__(self, policy: Path) -> None:
        bars: Any = import_module("transformers.utils.logging")
        bars.disable_progress_bar()
        self.model: Any = load_model(policy)
        """To compute with, after `load`."""
        self.grammars = GrammarCompiler(str(policy), self.model.get_output_embeddings().weight.shape[0])
        self._source = str(policy)
        self.pixels = lru_cache(maxsize=1024)(self._pixels)
        """Returns the pixel values of an image file."""
        self._first = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    def weights(self, version: int) -> dict[str, Tensor]:
        """Return the weights of a version by name."""
        if version == 0:
            return self._first
        noise = torch.Generator().manual_seed(version)
        return {
            name: first + STRENGTH * first.std() * torch.randn(first.shape, generator=noise)
            for name, first in self._first.items()
        }

    def load(self, version: int) -> None:
        """Put the weights of a version into `model`."""
        self.model.load_state_dict(self.weights(version), strict=False)

    @cached_property
    def _processor(self) -> Any:
        transformers: Any = import_module("transformers")
        return transformers.AutoProcessor.from_pretrained(self._source, backend="pil").image_processor

    def _pixels(self, file: bytes) -> Tensor:
        """Return what the processor of transformers makes of an image file, resized with Pillow as by the engine."""
        (pixels,) = self._processor(Image.open(BytesIO(file)).convert("RGB"), return_tensors="pt")["pixel_values"]
        return pixels
