"""How much memory a policy takes to be trained and served, reckoned from its configuration alone: nothing is loaded.

Reckoned for what `Updater` and the embedded engine do: float32 weights, AdamW, no recomputation of activations. Knows
nothing of machines.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leyden.core.errors import PolicyError

FLOAT = 4
"""Bytes of a number in float32."""
LOGITS = 4 * (1 << 26)
"""Logits, their exponentials and gradients, a chunk of 64 MiB at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """The numbers of a causal language model that decide how large it is."""

    parameters: int
    """A tied one once."""
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    context_length: int | None

    @classmethod
    def of(cls, source: str | Path) -> "PolicySize":
        """Read them from a folder or a hub name; raises PolicyError when there is no such model."""
        from transformers import AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        with reading_config(source) as config, torch.device("meta"):
            model = auto.from_config(config, trust_remote_code=False)
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
        """Bytes that an engine keeps for each token it has read."""
        return FLOAT * 2 * self.layers * self.key_value_heads * self.head_dim

    def adapters(self, rank: int) -> int:
        """Parameters of low-rank adapters on every linear layer of the blocks."""
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        widths = 2 * (self.hidden + queries) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.intermediate)
        return rank * self.layers * widths

    def activations(self, tokens: int) -> int:
        """Bytes kept for the backward pass over `tokens`, roughly; without scores of attention, which are not kept.

        Of each block: what its norms and linear layers read, queries, keys and values before and after their norms and
        rotations, and the four tensors of the gated layer.
        """
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        per_block = 5 * self.hidden + 5 * queries + 4 * keys + 4 * self.intermediate
        return FLOAT * tokens * (self.layers * per_block + 4 * self.hidden)


@contextmanager
def reading_config(source: str | Path) -> Generator[Any]:
    """Give the block the configuration of the model in a folder or of a hub name.

    Raises PolicyError, in one line, when there is no such model, or the block can make nothing of it.
    """
    from transformers import AutoConfig

    library: Any = AutoConfig
    try:
        yield library.from_pretrained(str(source), trust_remote_code=False)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise PolicyError(f"cannot read the configuration of {source}: {reason}") from error


def free_on_gpu() -> int | None:
    """Bytes left on the GPU; None when there is none."""
    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return int(free)
