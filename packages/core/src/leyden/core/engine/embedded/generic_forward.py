"""Generic forward pass: runs any Hugging Face causal model's own forward pass with the engine's cache."""

from typing import Any, Protocol, cast

from torch import Tensor, nn
from transformers import Cache

from leyden.core.engine.embedded.cache import Step
from leyden.core.engine.embedded.image_embeddings import ImageEmbeddings
from leyden.core.errors import EngineError

LONGEST_CHECK = 512
"""The self-check exceeds sliding windows up to this many tokens; wider ones are trusted only for `TESTED` families."""
TESTED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"})


class Forward(Protocol):
    """Forward pass over new tokens of some slots."""

    def __call__(self, ids_BQ: Tensor, step: Step, *, every: bool = False) -> Tensor:
        """Return logits of each row's last token (B, 1, V), or of `every` token (B, Q, V)."""
        ...

    def refresh(self) -> None:
        """Follow a change of the model's weights."""
        ...


class GenericForward:
    """The model's own forward pass, with the engine's cache instead of its own.

    `images` has the embeddings of images for models that read them.
    """

    def __init__(self, model: nn.Module, images: ImageEmbeddings | None = None) -> None:
        self._model = model
        self._images = images
        self._windows = attention_windows(cast(Any, model).config.get_text_config())

    def __call__(self, ids_BQ: Tensor, step: Step, *, every: bool = False) -> Tensor:
        """Return logits of each row's last token (B, 1, V), or of `every` token (B, Q, V)."""
        masks = {kind: step.mask(window) for kind, window in self._windows.items()}
        embeddings = None if self._images is None else self._images.of(ids_BQ)
        out = self._model(
            **({"input_ids": ids_BQ} if embeddings is None else {"inputs_embeds": embeddings}),
            attention_mask=masks if len(masks) > 1 or "sliding_attention" in masks else next(iter(masks.values())),
            position_ids=step.positions_BQ,
            past_key_values=_StepCache(step),
            use_cache=True,
            logits_to_keep=0 if every else 1,
        )
        return out.logits

    def refresh(self) -> None:
        """Do nothing: the model reads its weights in each pass."""


class _StepCache(Cache):
    """A `Step` with the interface that transformers' attention layers use."""

    def __init__(self, step: Step) -> None:
        super().__init__(layers=[])
        self._step = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self._step.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._step.width - self._step.positions_BQ.shape[1]


def attention_windows(config: Any) -> dict[str, int | None]:
    """Return the kinds of a model's attention layers and the window of each; EngineError for unknown kinds."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds: list[str] | None = getattr(config, "layer_types", None)
    if kinds is None:
        return {"full_attention": window}
    known = {"full_attention": None, "sliding_attention": window}
    if strange := set(kinds) - set(known):
        listed = ", ".join(sorted(strange))
        raise EngineError(f"{config.model_type} has layers of type {listed}, which the embedded engine cannot serve")
    return {kind: known[kind] for kind in sorted(set(kinds))}
