"""Sums and means over the entries of each transition."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def transition_sums(transition_N: "Tensor", values_N: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return `sums_M` over the entries of each of M transitions, by ascending number, and `which_N`, their index."""
    untyped: Any = transition_N
    found: tuple[Tensor, Tensor] = untyped.unique(return_inverse=True)
    numbers_M, which_N = found
    return values_N.new_zeros(len(numbers_M)).index_add(0, which_N, values_N), which_N


def transition_means(transition_N: "Tensor", values_N: "Tensor") -> "Tensor":
    """Return for each entry the mean of `values_N` over its transition."""
    sums_M, which_N = transition_sums(transition_N, values_N)
    counts_M, _ = transition_sums(transition_N, values_N.new_ones(len(values_N)))
    return (sums_M / counts_M)[which_N]
