"""Fused forward pass of Qwen2, Qwen3, Llama and Mistral, without the per-layer overhead of transformers.

That overhead is most of the time of a small batch. The pass uses the live parameters of the given Hugging Face model.
Fused projections are one tensor, of which the model's own parameters become views, so a weight update changes both. The
pass is checked against the model's own when an engine starts. Shape suffixes: B rows, Q tokens, H heads, D head size, V
vocabulary.

Matrices in bfloat16 or int8 are less to read in a step of few rows. Their products then have inputs and results in
bfloat16; all else keeps the precision of the norms, so that errors of products do not add up in the residual stream.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.core.engine.embedded.cache import Step
from leyden.core.engine.embedded.generic_forward import attention_windows
from leyden.core.engine.embedded.linear import Linear
from leyden.core.engine.embedded.shared_prefixes import attend

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class _Layer(NamedTuple):
    norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None

    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class FusedForward:
    """Forward pass of a Llama-like decoder, whose matrices are layers of the class `linear`."""

    def __init__(self, model: nn.Module, linear: type[Linear] = Linear) -> None:
        hf = cast(Any, model)
        config, body = hf.config, hf.model
        self._heads: int = config.num_attention_heads
        self._groups: int = config.num_key_value_heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps: float = config.rms_norm_eps
        self._head = linear(hf.lm_head.weight, hf.lm_head.bias)
        tied = hf.lm_head.weight is body.embed_tokens.weight
        self._embedding = self._head if tied else linear(body.embed_tokens.weight)
        self._norm: Tensor = body.norm.weight
        self._rotary: nn.Module = body.rotary_emb
        self._cos, self._sin = self._rotary_table(COLUMNS)
        windows = attention_windows(config)
        kinds: list[str] = getattr(config, "layer_types", None) or [next(iter(windows))] * config.num_hidden_layers
        self._layers = [_layer(layer, windows[kind], linear) for layer, kind in zip(body.layers, kinds, strict=True)]

    @staticmethod
    def serves(model: nn.Module) -> bool:
        """Return whether this forward pass may work for `model`; the self-check decides."""
        config = cast(Any, model).config
        return (
            config.model_type in FAMILIES
            and type(model).__name__.endswith("ForCausalLM")
            and config.hidden_act == "silu"
            and all(parameter.is_floating_point() for parameter in model.parameters())
        )

    def __call__(self, ids_BQ: Tensor, step: Step, *, every: bool = False) -> Tensor:
        """Return logits of each row's last token (B, 1, V), or of `every` token (B, Q, V)."""
        if step.width > len(self._cos):
            self._cos, self._sin = self._rotary_table(2 * step.width)
        rotary = self._cos[step.positions_BQ][:, :, None], self._sin[step.positions_BQ][:, :, None]
        x = self._embedding.rows(ids_BQ).to(self._norm.dtype)
        for n, layer in enumerate(self._layers):
            x = x + self._attend(n, layer, x, rotary, step)
            y = self._rms(x, layer.mlp_norm)
            gate, up = layer.gate_up(y).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        x = self._rms(x if every else x[:, -1:], self._norm)
        return self._head(x)

    def refresh(self) -> None:
        """Follow a change of the model's weights."""
        for linear in {self._embedding, self._head, *(one for layer in self._layers for one in layer.linears())}:
            linear.refresh()

    def _attend(self, n: int, layer: _Layer, x: Tensor, rotary: tuple[Tensor, Tensor], step: Step) -> Tensor:
        rows, tokens, _ = x.shape
        z = layer.qkv(self._rms(x, layer.norm)).view(rows, tokens, -1, self._head_dim)
        q, k, v = z[:, :, : self._heads], z[:, :, self._heads : -self._groups], z[:, :, -self._groups :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms(q, layer.q_norm), self._rms(k, layer.k_norm)
        keys, values = step.write(n, _rotate(k, *rotary).transpose(1, 2), v.transpose(1, 2))
        q, mask = _rotate(q, *rotary).transpose(1, 2), step.mask(layer.window)
        if step.shared_prefixes is not None:
            attended = attend(q, keys, values, mask, step.shared_prefixes)
        else:
            gqa = self._heads != self._groups
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=gqa)
        return layer.out(attended.transpose(1, 2).reshape(rows, tokens, -1))

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)

    def _rotary_table(self, length: int) -> tuple[Tensor, Tensor]:
        """Return cosines, and sines with the sign of the half they multiply, for positions below `length` (T, D)."""
        positions = torch.arange(length, device=self._norm.device)[None]
        cos, sin = self._rotary(self._norm, positions)
        sign = torch.ones_like(sin[0])
        sign[:, : self._head_dim // 2] = -1
        return cos[0], sin[0] * sign


COLUMNS = 1024
"""Number of positions in the first table of rotations."""


def _rotate(x_BQHD: Tensor, cos_BQ1D: Tensor, signed_sin_BQ1D: Tensor) -> Tensor:
    """Apply rotary embeddings (Su et al. 2021, arXiv 2104.09864) in the half-split layout."""
    return torch.addcmul(x_BQHD * cos_BQ1D, x_BQHD.roll(x_BQHD.shape[-1] // 2, -1), signed_sin_BQ1D)


def _layer(layer: Any, window: int | None, linear: type[Linear]) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        norm=layer.input_layernorm.weight,
        qkv=_fused([attention.q_proj, attention.k_proj, attention.v_proj], linear),
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        out=_fused([attention.o_proj], linear),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=_fused([mlp.gate_proj, mlp.up_proj], linear),
        down=_fused([mlp.down_proj], linear),
        window=window,
    )


def _fused(projections: list[Any], linear: type[Linear]) -> Linear:
    """Return one layer with the outputs of all projections, one after the other."""
    bias = None if projections[0].bias is None else _stack([projection.bias for projection in projections])
    return linear(_stack([projection.weight for projection in projections]), bias)


def _stack(parameters: list[nn.Parameter]) -> Tensor:
    """Return the parameters stacked along their first dimension, and make each a view of its part."""
    if len(parameters) == 1:
        return parameters[0]
    fused = torch.cat([parameter.data for parameter in parameters])
    begin = 0
    for parameter in parameters:
        parameter.data = fused[begin : begin + len(parameter)]
        begin += len(parameter)
    return fused
