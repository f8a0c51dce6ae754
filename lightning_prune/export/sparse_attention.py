"""Attention whose projections hold the weights left as compressed sparse rows (CSR), for inference."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_prune.export.sparse_layers import SparseLinear


class SparseAttention(nn.Module):
    """``torch.nn.MultiheadAttention`` with its four projections as CSR, for inference on a CPU.

    Args:
        attention: The layer, one for which :func:`is_plain` is true; the zeros of its weights are left out.

    Shape:
        As for ``torch.nn.MultiheadAttention``.

    Raises:
        RuntimeError: As for :class:`lightning_prune.export.sparse_layers.SparseLinear`.

    Example:
        >>> layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> x = torch.randn(3, 5, 8)
        >>> sparse, dense = SparseAttention(layer)(x, x, x), layer(x, x, x)
        >>> all(torch.allclose(one, two, atol=1e-6) for one, two in zip(sparse, dense))
        True
    """

    in_proj_bias = None  # so torch's fused encoder layer, which reads dense weights, does not take the place of this

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = attention.embed_dim, attention.num_heads
        self.batch_first = attention.batch_first
        for name, weight, bias in zip("qkv", *_packed(attention), strict=True):
            self.add_module(name, SparseLinear(_linear(weight, bias)))
        self.out_proj = SparseLinear(attention.out_proj)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The layer's outputs, and the weights of attention where they are asked for."""
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True says that attn_mask= is the causal mask: give it, as torch's layer wants")
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (
            self.get_submodule(name)(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for name, x in (("q", query), ("k", key), ("v", value))
        )
        mask = _merged(attn_mask, key_padding_mask, q)
        if need_weights:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            weights = (scores if mask is None else scores + mask).softmax(dim=-1)
            attended = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            weights, attended = None, F.scaled_dot_product_attention(q, k, v, mask)
        out = self.out_proj(attended.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def to_dense(self) -> nn.MultiheadAttention:
        """The layer as it was, without the dropout that it may have had."""
        has_bias = self.out_proj.bias is not None
        made = nn.MultiheadAttention(self.embed_dim, self.num_heads, bias=has_bias, batch_first=self.batch_first)
        parts: list[Any] = [self.get_submodule(name) for name in "qkv"]
        state: dict[str, Any] = {
            "in_proj_weight": torch.cat([part.weight for part in parts]),
            "out_proj.weight": self.out_proj.weight,
        }
        if has_bias:
            state |= {"in_proj_bias": torch.cat([part.bias for part in parts]), "out_proj.bias": self.out_proj.bias}
        made.load_state_dict(state, assign=True)
        return made.eval()


def is_plain(attention: nn.MultiheadAttention) -> bool:
    """Whether there is a sparse layer for an attention: queries, keys and values of one width, nothing added to them.

    Args:
        attention: The layer.
    """
    added = attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn
    return (
        type(attention).forward is nn.MultiheadAttention.forward and attention.in_proj_weight is not None and not added
    )


def _packed(attention: nn.MultiheadAttention) -> tuple[Any, Any]:
    bias = attention.in_proj_bias
    return attention.in_proj_weight.chunk(3), (None,) * 3 if bias is None else bias.chunk(3)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias}, assign=True)
    return linear


def _merged(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as what is added to scores of the shape (batch, heads, queries, keys)."""
    mask = None if attn_mask is None else _added(attn_mask, q)
    if mask is not None and mask.dim() == 3:
        mask = mask.view(*q.shape[:2], *mask.shape[1:])
    if key_padding_mask is None:
        return mask
    padding = _added(key_padding_mask, q)
    padding = padding.view(-1, 1, 1, padding.shape[-1])
    return padding if mask is None else mask + padding


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
