"""`Critic`: predicts the return of a rollout in the state before each call.

A state is a transition's prompt. Its value is computed at the position that predicts the first response token: a linear
head reads the output head's input there. Later response tokens have no values. Credit is given to whole calls, so all
tokens of a call share one advantage, and values between them would not be used.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leyden.core.data.transition import Transition
from leyden.core.errors import PolicyError
from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.logprobs import hidden_states
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import read_prefix
from leyden.core.policy.update.entries import Entries, Floats, WeightedTransition
from leyden.core.policy.update.merge import TokenSequence, merged, unmerged
from leyden.core.policy.update.micro_batches import MicroBatch, micro_batches
from leyden.core.policy.update.shared_prefix import SharedPrefix


class Critic:
    """A value head on a backbone. The head begins at 0, so at first all values are 0."""

    def __init__(self, backbone: PolicyModel, *, shared: bool) -> None:
        self.backbone = backbone
        self.shared = shared
        """Whether the backbone is the policy's; the critic then neither trains nor saves it."""
        self.head: nn.Linear = nn.Linear(_width(backbone), 1, device=backbone.device, dtype=backbone.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def beside_policy(cls, policy: PolicyModel) -> "Critic":
        """Return a critic on a copy of the current policy; the copy has no output head."""
        backbone = deepcopy(policy)
        module: Any = backbone.module
        module.set_output_embeddings(nn.Identity())
        backbone.head = module.get_output_embeddings()
        return cls(backbone, shared=False)

    @classmethod
    def on(cls, policy: PolicyModel) -> "Critic":
        """Return a critic whose backbone is the policy itself."""
        return cls(policy, shared=True)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield what is trained as the critic: the head, and the backbone if it is the critic's own."""
        yield from self.head.parameters()
        if not self.shared:
            yield from self.backbone.parameters()

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that `parameters` belong to, by name, as views."""
        head = {f"head.{name}": tensor.detach() for name, tensor in self.head.named_parameters()}
        return head if self.shared else head | _prefixed(self.backbone.trained_weights())

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy `weights`, named as by `weights`, into the critic; PolicyError if they belong to another model."""
        own = self.weights()
        for name in ("head.weight", "head.bias"):
            if name not in weights or weights[name].shape != own[name].shape:
                raise PolicyError(
                    f"these weights do not belong to a critic of {self.backbone.source}: their value head differs"
                )
            own[name].copy_(weights[name])
        if not self.shared:
            rest = {
                name.removeprefix(_BACKBONE): tensor for name, tensor in weights.items() if name.startswith(_BACKBONE)
            }
            self.backbone.load_weights(rest)

    def of_hidden(self, hidden_NH: Tensor) -> Tensor:
        """Return `value_N` of states, given the output head's inputs."""
        return self.head(hidden_NH.to(self.head.weight.dtype))[:, 0]

    def of_batch(self, batch: MicroBatch, prefix: SharedPrefix | None) -> Tensor:
        """Return `value_N` of a batch whose entries are those of `states`; a shared backbone gets no gradient here."""
        with self.reading(), self.backbone.computing():
            hidden_NH, _ = hidden_states(self.backbone, batch, prefix)
        return self.of_hidden(hidden_NH)

    def reading(self) -> AbstractContextManager[object]:
        """Return a context in which the backbone builds a graph for gradients only if the critic trains it."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self.shared)

    @torch.no_grad()
    def values(self, calls: Sequence[Transition], token_budget: int | None, exactness: Capabilities) -> Floats:
        """Return `value_N` of the states of N calls, computed in batches of at most `token_budget` tokens."""
        found_N = np.full(len(calls), np.nan)
        sequences = states(calls)
        prefix, length = read_prefix(self.backbone, sequences, exactness)
        for batch in micro_batches(sequences, token_budget, length):
            part = batch.to(self.backbone.device, self.backbone.dtype)
            found_N[batch.transition_N.numpy()] = self.of_batch(part, prefix).double().cpu().numpy()
        return found_N


def readable(call: Transition, context_length: int | None) -> bool:
    """Return whether the state of `call` can have a value: nothing is empty, and the call fits the model's context."""
    tokens = len(call.prompt_ids) + len(call.response_ids)
    fits = context_length is None or tokens <= context_length
    return fits and len(call.prompt_ids) > 0 and len(call.response_ids) > 0


def states(calls: Sequence[Transition], *, merge: bool = True) -> list[TokenSequence]:
    """Return token sequences with one entry for each call, at the position where its state is complete.

    They are the sequences that the calls are trained as, each read only up to its last state.
    """
    items = [WeightedTransition(transition=call, advantage=0.0) for call in calls]
    sequences = (merged if merge else unmerged)(items, [1.0] * len(items))
    return [replace(sequence, entries=_firsts(sequence.entries)) for sequence in sequences]


def first_of_each(transition_N: Tensor) -> Tensor:
    """Return `first_N`, true where an entry is its transition's first; entries of a transition are adjacent."""
    return torch.cat([transition_N[:1] >= 0, transition_N[1:] != transition_N[:-1]])


_BACKBONE = "backbone."


def _prefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_BACKBONE + name: tensor for name, tensor in weights.items()}


def _firsts(entries: Entries) -> Entries:
    firsts = np.flatnonzero(np.diff(entries.transition_N, prepend=-1))
    return Entries(**{field.name: getattr(entries, field.name)[firsts] for field in fields(Entries)})


@torch.no_grad()
def _width(backbone: PolicyModel) -> int:
    """Return the size of the output head's input, found with a forward pass over one token."""
    zero_1 = torch.zeros(1, dtype=torch.long, device=backbone.device)
    with backbone.computing(), backbone.selecting(zero_1, zero_1, logits=False) as received:
        backbone.module(input_ids=zero_1[None], use_cache=False)
    return received[0].shape[-1]
