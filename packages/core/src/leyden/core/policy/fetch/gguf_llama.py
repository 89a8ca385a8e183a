"""GGUF conversion: writes a GGUF file of a Llama model as a Hugging Face folder, with numpy and float32 weights.

transformers can read GGUF as well. But it gives this tokenizer another end-of-sequence token and other rules for digits
than the model was trained with. The names come from llama.cpp's GGUF specification and from transformers' Llama.
"""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leyden.core.errors import PolicyError, UsageError

Floats: TypeAlias = NDArray[np.float32]
Progress: TypeAlias = Callable[[int, int], None]
"""Callback that receives the number of finished tensors and of all tensors."""

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""Token type of control tokens."""


class GgufLlama:
    """A GGUF file whose architecture is `llama` and whose tokenizer is a byte-level BPE."""

    def __init__(self, path: Path) -> None:
        """Read the file's header; PolicyError for a file of another kind, UsageError if gguf is not installed."""
        try:
            library: Any = import_module("gguf")
        except ImportError:
            raise UsageError("reading GGUF files needs the package gguf: pip install 'leyden-core[train]'") from None
        try:
            self._reader: Any = library.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise PolicyError(f"{path.name} is not a GGUF file that can be read: {error}") from None
        self._dequantize: Any = library.quants.dequantize
        self._name = path.name
        self._expect("general.architecture", "llama")
        self._expect("tokenizer.ggml.model", "gpt2")
        self._expect("tokenizer.ggml.pre", "smollm")

    def write(self, folder: Path, chat_template: str, progress: Progress) -> None:
        """Write configuration, weights, tokenizer and `chat_template` into `folder`."""
        weights = self._weights(progress)
        library: Any = import_module("safetensors.numpy")
        library.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        _write_json(folder / "config.json", self._config(tied="lm_head.weight" not in weights))
        ends = {key: self._value(f"tokenizer.ggml.{name}") for key, name in _END_IDS.items()}
        _write_json(folder / "generation_config.json", ends)
        self._tokenizer().save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", self._tokenizer_config())
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")

    def _weights(self, progress: Progress) -> dict[str, Floats]:
        heads, groups = self._value("llama.attention.head_count"), self._value("llama.attention.head_count_kv")
        weights: dict[str, Floats] = {}
        for tensor in self._reader.tensors:
            name = self._hugging_face_name(tensor.name)
            values: Floats = self._dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                values = _halves_apart(values, heads if name.endswith("q_proj.weight") else groups)
            weights[name] = np.ascontiguousarray(values)
            progress(len(weights), len(self._reader.tensors))
        return weights

    def _hugging_face_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{kind}"
        parts = stem.split(".")
        if len(parts) == 3 and parts[0] == "blk" and parts[2] in _BLOCK:
            return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{kind}"
        raise PolicyError(f"{self._name} holds a tensor {name}, which a Llama model does not have")

    def _config(self, *, tied: bool) -> dict[str, Any]:
        heads, width = self._value("llama.attention.head_count"), self._value("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "dtype": "float32",
            "head_dim": width // heads,
            "hidden_act": "silu",
            "hidden_size": width,
            "intermediate_size": self._value("llama.feed_forward_length"),
            "max_position_embeddings": self._value("llama.context_length"),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": self._value("llama.block_count"),
            "num_key_value_heads": self._value("llama.attention.head_count_kv"),
            "rms_norm_eps": _rounded(self._value("llama.attention.layer_norm_rms_epsilon")),
            "rope_parameters": {"rope_theta": self._value("llama.rope.freq_base"), "rope_type": "default"},
            "tie_word_embeddings": tied,
            "vocab_size": len(self._value("tokenizer.ggml.tokens")),
            **{key: self._value(f"tokenizer.ggml.{name}") for key, name in _END_IDS.items()},
        }

    def _tokenizer(self) -> Any:
        """Return a byte-level BPE that splits off single digits, as `smollm` in `tokenizer.ggml.pre` means."""
        library: Any = import_module("tokenizers")
        tokens: list[str] = self._value("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self._value("tokenizer.ggml.merges")]
        model = library.models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
        tokenizer = library.Tokenizer(model)
        split = library.pre_tokenizers
        tokenizer.pre_tokenizer = split.Sequence(
            [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = library.decoders.ByteLevel()
        kinds: list[int] = self._value("tokenizer.ggml.token_type")
        tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
        return tokenizer

    def _tokenizer_config(self) -> dict[str, Any]:
        tokens: list[str] = self._value("tokenizer.ggml.tokens")
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids: dict[str, int] = {short: self._value(f"tokenizer.ggml.{long}_token_id") for short, long in names.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": self._value("llama.context_length"),
            **{f"{short}_token": tokens[token_id] for short, token_id in ids.items()},
        }

    def _expect(self, key: str, value: str) -> None:
        if (found := self._value(key)) != value:
            raise PolicyError(f"{self._name} has {key} {found!r}; Leyden can read only {value!r}")

    def _value(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        if field is None:
            raise PolicyError(f"{self._name} has no {key}")
        return field.contents()


_END_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


def _halves_apart(weight: Floats, heads: int) -> Floats:
    """Return the weight in transformers' row order of heads: rotary pairs in two halves.

    GGUF stores the pairs side by side.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _rounded(value: float) -> float:
    """Return the decimal number that a float32 value was rounded from."""
    return float(f"{value:.6g}")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
