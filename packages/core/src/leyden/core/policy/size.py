"""Policy size: estimates the memory that training and serving a policy needs, without loading the policy.

The estimate uses only the model's configuration. It describes `Updater` and the embedded engine: float32 weights,
AdamW, and no recomputation of activations.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leyden.core.errors import PolicyError, first_line
from leyden.core.images.processor import model_class
from leyden.core.policy.source import check_source

FLOAT = 4
"""Bytes of a float32 number."""
LOGITS = 4 * (1 << 26)
"""Bytes of the logits, their exponentials and gradients, of which one chunk of 64 MiB each exists at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """The sizes of a causal language model."""

    parameters: int
    """Number of parameters; a tied one counts once."""
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    context_length: int | None

    @classmethod
    def of(cls, source: str | Path) -> "PolicySize":
        """Return the sizes of the model in a folder or of a hub name; raises PolicyError if there is no such model."""
        with reading_config(source) as config, torch.device("meta"):
            model = model_class(str(source)).from_config(config, trust_remote_code=False)
        text = config.get_text_config()
        heads = int(getattr(text, "num_attention_heads", None) or 1)
        hidden = int(text.hidden_size)
        return cls(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            hidden=hidden,
            layers=int(text.num_hidden_layers),
            heads=heads,
            key_value_heads=int(getattr(text, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
            intermediate=int(getattr(text, "intermediate_size", None) or 4 * hidden),
            context_length=getattr(text, "max_position_embeddings", None),
        )

    @property
    def weights(self) -> int:
        """Bytes of one copy of the weights."""
        return FLOAT * self.parameters

    @property
    def key_values(self) -> int:
        """Bytes of keys and values that an engine keeps for each token."""
        return FLOAT * 2 * self.layers * self.key_value_heads * self.head_dim

    def adapters(self, rank: int) -> int:
        """Return the number of parameters of low-rank adapters on every linear layer of the blocks."""
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        widths = 2 * (self.hidden + queries) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.intermediate)
        return rank * self.layers * widths

    def activations(self, tokens: int) -> int:
        """Return the approximate bytes kept for the backward pass over `tokens`, without attention scores.

        Attention scores are not kept. For each block the estimate counts the inputs of norms and linear layers, and the
        four tensors of the gated layer. It also counts queries, keys and values before and after their norms and
        rotations.
        """
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        per_block = 5 * self.hidden + 5 * queries + 4 * keys + 4 * self.intermediate
        return FLOAT * tokens * (self.layers * per_block + 4 * self.hidden)


@contextmanager
def reading_config(source: str | Path) -> Generator[Any]:
    """Yield the configuration of the model in a folder or of a hub name.

    Raises PolicyError, in one line, if there is no such model, or if the block raises an error.
    """
    from transformers import AutoConfig

    check_source(source)
    library: Any = AutoConfig
    try:
        yield library.from_pretrained(str(source), trust_remote_code=False)
    except Exception as error:
        missing = "" if Path(source).is_dir() else ", which is no folder here, and no model that the hub sent"
        raise PolicyError(f"cannot read the configuration of {source}{missing}: {first_line(error)}") from error


def free_on_gpu() -> int | None:
    """Return the free bytes of the GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return int(free)
