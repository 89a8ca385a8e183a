"""`PolicyModel`: a Hugging Face causal language model prepared for training."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leyden.core.data.encoding.images import PromptImage
from leyden.core.errors import PolicyError, first_line
from leyden.core.images.processor import model_class
from leyden.core.policy.adjusted_responses import AdjustedResponses
from leyden.core.policy.huge_pages import use_huge_pages
from leyden.core.policy.image_inputs import ImageInputs
from leyden.core.policy.lora import Adapters
from leyden.core.policy.options import LoraOptions, Precision
from leyden.core.policy.source import check_source


class PolicyModel:
    """A causal language model with weights in float32.

    `precision="bfloat16"` computes forward and backward passes in bfloat16 (autocast) with the same float32 weights.
    Weights rounded to bfloat16 would lose most updates. Dropout is off, so that the trained policy is the served one.
    """

    def __init__(self, module: nn.Module, source: str | Path, precision: Precision = "float32") -> None:
        self.module = module.eval()
        """The `transformers` model itself."""
        self.source = str(source)
        """Folder or hub name of the model and its tokenizer."""
        self.precision: Precision = precision
        self.adapters: Adapters | None = None
        """Adapters, which are trained instead of the weights; None: the weights are trained."""
        self._original = False
        self.head = _output_head(module, self.source)
        self.config: Any = module.config
        self.adjusted_responses = AdjustedResponses(self.source, self.vocab_size)
        """Recomputes grammars, penalties and biases of recorded responses; copies of the model share it."""
        self.images = ImageInputs(self.source, self.config)
        """Reads the images of prompts; copies of the model share it."""
        for parameter in module.parameters():
            parameter.requires_grad_(True)

    @classmethod
    def load(cls, source: str | Path, *, precision: Precision = "float32", device: str = "cpu") -> "PolicyModel":
        """Return the model in a local folder or of a hub name; never runs code that comes with the weights.

        Raises PolicyError if there is no such folder, or if it holds no causal language model.
        """
        check_source(source)
        use_huge_pages()
        try:
            with no_progress_bars():
                module, found = model_class(str(source)).from_pretrained(
                    str(source), dtype=torch.float32, trust_remote_code=False, output_loading_info=True
                )
            module = module.to(device)
        except Exception as error:
            raise PolicyError(f"cannot load a causal language model from {source}: {first_line(error)}") from error
        if found["missing_keys"]:
            missing = sorted(found["missing_keys"])
            raise PolicyError(f"{source} lacks {len(missing)} of the model's weights, such as {missing[0]}")
        return cls(module, source, precision)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def context_length(self) -> int | None:
        """Longest sequence that the model supports, in tokens; None if its configuration has no such value."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @property
    def width(self) -> int:
        """Size of the hidden state."""
        return int(self.config.get_text_config().hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return int(self.config.get_text_config().vocab_size)

    def adapt(self, options: LoraOptions, seed: int = 0) -> None:
        """Train low-rank adapters instead of the weights from now on; untrained adapters change nothing.

        Raises UsageError for layers that the blocks do not have, and PolicyError if there are other adapters already.
        """
        if self.adapters is None:
            self.adapters = Adapters(self.module, options, self.source, seed)
        elif self.adapters.options != options:
            raise PolicyError(f"{self.source} already has adapters with {self.adapters.options}")

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what is trained: the weights (a tied one once), or the adapters."""
        return self.module.parameters() if self.adapters is None else iter(self.adapters.parameters())

    def weights(self) -> dict[str, Tensor]:
        """Return the weights for an engine, under their state-dict names; a tied weight once, under its first name.

        The tensors are views that the next update changes, so an engine must copy them (`Engine.update_weights` does).
        Adapters are merged into copies of the weights they adapt. These copies take memory as long as the result is
        kept. The model itself does not change.
        """
        seen: set[int] = set()
        weights: dict[str, Tensor] = {}
        for name, tensor in self._all_weights().items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                weights[name] = tensor.detach()
        return weights

    def trained_weights(self) -> dict[str, Tensor]:
        """Return what training changes, for a checkpoint: the same as `weights`, or only the adapters, as views."""
        return self.weights() if self.adapters is None else self.adapters.weights()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy `weights`, named as by `trained_weights`, into the model; PolicyError if names or shapes differ."""
        own = self.trained_weights()
        if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
            raise PolicyError(f"these weights do not belong to {self.source}: their names or shapes differ")
        for name, tensor in own.items():
            tensor.copy_(weights[name])

    def frozen_copy(self) -> "PolicyModel":
        """Return a copy of the current policy without gradients; it takes the memory of the weights again.

        With adapters, the copy is the policy before the adapters were trained. It takes no memory: it is the same
        module, and computes without the adapters.
        """
        if self.adapters is not None:
            original = copy(self)
            original._original = True
            return original
        frozen = PolicyModel(deepcopy(self.module), self.source, self.precision)
        frozen.adjusted_responses = self.adjusted_responses
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
        return frozen

    def in_precision(self, precision: Precision) -> "PolicyModel":
        """Return a model with the same weights that computes in `precision`."""
        other = copy(self)
        other.precision = precision
        return other

    def inputs(self, ids_BT: Tensor, images: Mapping[int, PromptImage]) -> dict[str, Tensor]:
        """Return the arguments with which the module reads tokens; `images` are by the id of their first token."""
        return self.images.inputs(self.module, ids_BT, images)

    @contextmanager
    def computing(self) -> Generator[None]:
        """Context in which a forward pass uses the chosen precision, and adapters except for the original policy."""
        off = self.adapters.off() if self.adapters is not None and self._original else nullcontext()
        with off, torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
            yield

    def _all_weights(self) -> dict[str, Tensor]:
        if self.adapters is None:
            return self.module.state_dict(keep_vars=True)
        return self.adapters.plain() if self._original else self.adapters.merged()

    @contextmanager
    def selecting(self, row_N: Tensor, column_N: Tensor, *, logits: bool) -> Generator[list[Tensor]]:
        """Inside the block, a forward pass gives the output head only positions `[row, column]` of its input.

        Yields a list that receives that input, `hidden_NH`. The model then returns `logits_1NV`, or empty logits if
        `logits` is false. This works for every model whose head is one module, even if the model changes its logits
        afterwards.
        """
        received: list[Tensor] = []

        def select(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden_NH = inputs[0][row_N, column_N]
            received.append(hidden_NH)
            return ((hidden_NH if logits else hidden_NH[:0]).unsqueeze(0), *inputs[1:])

        hook = self.head.register_forward_pre_hook(select)
        try:
            yield received
        finally:
            hook.remove()


@contextmanager
def no_progress_bars() -> Generator[None]:
    """Turn off the progress bars of transformers inside the block, where it reads or writes local files."""
    from transformers.utils import logging

    bars: Any = logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _output_head(module: Any, source: str) -> nn.Module:
    head = module.get_output_embeddings()
    if not isinstance(head, nn.Module):
        raise PolicyError(f"{source} has no language-model head, so it cannot be trained as a policy")
    return head
