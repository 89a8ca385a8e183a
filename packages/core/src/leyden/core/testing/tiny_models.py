"""Tiny random causal models of several families, for tests of serving and training."""

from collections.abc import Mapping
from typing import Any

import torch.random
import transformers
from torch import nn

SIZE: Mapping[str, object] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
"""Settings of all families except gpt2; the spread of the weights makes log-probabilities differ."""

FAMILIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "qwen3": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3-sliding": (
        "Qwen3",
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1},
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}),
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-scaled": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": 40}),
    "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": 40, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3", {"head_dim": 8, "sliding_window": 40, "num_hidden_layers": 3, "sliding_window_pattern": 3}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.2}),
    "mamba": ("Mamba", {"state_size": 4}),
}
"""Class prefix and configuration by family; mamba is included as a model without keys and values."""


def tiny_model(family: str = "qwen3", seed: int = 0, **changes: object) -> nn.Module:
    """Return a model of `family` with random weights; `changes` are settings of its configuration."""
    prefix, settings = FAMILIES[family]
    classes: Any = transformers
    size = {"vocab_size": SIZE["vocab_size"]} if family == "gpt2" else dict(SIZE)
    config_class = getattr(classes, "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}Config")
    config = config_class(**{**size, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, **settings, **changes})
    model_class = getattr(classes, f"{prefix}LMHeadModel" if prefix == "GPT2" else f"{prefix}ForCausalLM")
    random_state: Any = torch.random
    with random_state.fork_rng(devices=[]):
        random_state.manual_seed(seed)
        model: nn.Module = model_class(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):
                nn.init.normal_(parameter.data, mean=0.0 if name.endswith("bias") else 1.0, std=0.3)
        return model
