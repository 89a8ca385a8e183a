"""`PolicyModel`: a Hugging Face causal language model held for training. Knows nothing of losses or engines."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leyden.core.errors import PolicyError
from leyden.core.policy.lora import Adapters
from leyden.core.policy.options import LoraOptions, Precision


class PolicyModel:
    """A causal language model, its weights in float32.

    `precision="bfloat16"` computes forward and backward in bfloat16 (autocast) over the same float32 weights: weights
    rounded to bfloat16 would swallow most updates. Dropout is off, so that the policy trained is the one served.
    """

    def __init__(self, module: nn.Module, source: str | Path, precision: Precision = "float32") -> None:
        self.module = module.eval()
        """The `transformers` model itself."""
        self.source = str(source)
        """Folder or hub name the model and its tokenizer come from."""
        self.precision: Precision = precision
        self.adapters: Adapters | None = None
        """What is trained in the place of the weights, where it is not the weights."""
        self._original = False
        self.head = _output_head(module, self.source)
        self.config: Any = module.config
        for parameter in module.parameters():
            parameter.requires_grad_(True)

    @classmethod
    def load(cls, source: str | Path, *, precision: Precision = "float32", device: str = "cpu") -> "PolicyModel":
        """Load a local folder or a hub name; never runs code that comes with the weights.

        Raises PolicyError when there is no such folder, or nothing in it that is a causal language model.
        """
        from transformers import AutoModelForCausalLM

        _check_folder(source)
        auto: Any = AutoModelForCausalLM
        try:
            with no_progress_bars():
                module, found = auto.from_pretrained(
                    str(source), dtype=torch.float32, trust_remote_code=False, output_loading_info=True
                )
            module = module.to(device)
        except Exception as error:
            raise PolicyError(f"cannot load a causal language model from {source}: {_first_line(error)}") from error
        if found["missing_keys"]:
            missing = sorted(found["missing_keys"])
            raise PolicyError(f"{source} lacks {len(missing)} of the model's weights, {missing[0]} among them")
        return cls(module, source, precision)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def context_length(self) -> int | None:
        """Longest sequence the model was made for, in tokens; None when its configuration does not say."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @property
    def width(self) -> int:
        """Numbers that stand for a token between two blocks."""
        return int(self.config.get_text_config().hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return int(self.config.get_text_config().vocab_size)

    def adapt(self, options: LoraOptions, seed: int = 0) -> None:
        """Train low-rank adapters in the place of the weights from here on; they change nothing until they are trained.

        Raises UsageError for layers that the blocks do not have, PolicyError when there are other adapters already.
        """
        if self.adapters is None:
            self.adapters = Adapters(self.module, options, self.source, seed)
        elif self.adapters.options != options:
            raise PolicyError(f"{self.source} has adapters already, of {self.adapters.options}")

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained: the weights, a tied one once, or the adapters."""
        return self.module.parameters() if self.adapters is None else iter(self.adapters.parameters())

    def weights(self) -> dict[str, Tensor]:
        """Return the weights under their state-dict names, a tied one once (under its first name), for an engine.

        They are views: the next update changes them, so whoever serves them copies (`Engine.update_weights` does).
        Adapters are merged into copies of the weights they adapt, which takes the memory of those weights for as long
        as the result is kept; the model itself is left as it is.
        """
        seen: set[int] = set()
        weights: dict[str, Tensor] = {}
        for name, tensor in self._all_weights().items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                weights[name] = tensor.detach()
        return weights

    def trained_weights(self) -> dict[str, Tensor]:
        """Return what training changes, for a checkpoint: the same as `weights`, or the adapters alone, as views."""
        return self.weights() if self.adapters is None else self.adapters.weights()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy `weights`, named as by `trained_weights`, into the model; PolicyError when they are another model's."""
        own = self.trained_weights()
        if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
            raise PolicyError(f"these weights do not belong to {self.source}: their names or shapes differ")
        for name, tensor in own.items():
            tensor.copy_(weights[name])

    def frozen_copy(self) -> "PolicyModel":
        """Return the policy as it is now, which no gradient reaches: once more the memory of the weights.

        With adapters it is the policy as it was before they were trained, and takes no memory: the same module, which
        computes without them.
        """
        if self.adapters is not None:
            original = copy(self)
            original._original = True
            return original
        frozen = PolicyModel(deepcopy(self.module), self.source, self.precision)
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
        return frozen

    def in_precision(self, precision: Precision) -> "PolicyModel":
        """Return the same model, its weights shared, that computes in `precision`."""
        other = copy(self)
        other.precision = precision
        return other

    @contextmanager
    def computing(self) -> Generator[None]:
        """Context in which a forward pass uses the chosen precision, and adapters where they belong to the policy."""
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

        Yields a list that receives that input, `hidden_NH`. The model then returns `logits_1NV`, or empty logits when
        `logits` is false. It works for every model whose head is one module, whatever it does to its logits after.
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
    """Keep transformers from drawing its own progress bars inside the block; its files are read and written here."""
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


def _check_folder(source: str | Path) -> None:
    """Say plainly what is wrong with a path; a name that is none is left to the hub."""
    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PolicyError(f"{source} is not a policy folder: it has no config.json")
    elif isinstance(source, Path) or str(source).startswith((".", "/", "~")) or folder.exists():
        raise PolicyError(f"there is no policy folder {source}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
