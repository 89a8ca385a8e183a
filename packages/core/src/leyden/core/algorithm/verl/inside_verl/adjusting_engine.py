"""Adjusting engine: VERL's training engine, which computes log-probabilities as responses were sampled.

Grammars, truncation, penalties and biases change the logits between the model and the softmax. Leyden's subclass
applies them to the logits of each row's response, for new, old and reference log-probabilities alike, and calls VERL's
own method for everything else. Shape suffixes: B rows, L columns, V vocabulary, N adjusted positions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leyden.core.algorithm.verl.row_sampling import SAMPLING_FIELD, STRATEGIES, UNADJUSTED, adjustments
from leyden.core.engine.embedded.adjusted_logits import Adjustment, adjusted
from leyden.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

BLOCKED = -1e4
"""Logit of a token that could not be sampled: its probability is exactly 0.

VERL multiplies probabilities with logits for the entropy, which minus infinity would make a NaN.
"""


class AdjustingEngine:
    """Base before one of VERL's engines; adjusts the logits that the engine reads."""

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Return VERL's log-probabilities and entropies of a micro-batch, from the adjusted logits."""
        if SAMPLING_FIELD in micro_batch.keys():  # noqa: SIM118  # a TensorDict is no mapping
            output.logits = adjusted_rows(output.logits, micro_batch)
        verl: Any = super()
        return verl.prepare_model_outputs(output, output_args, micro_batch, *args, **kwargs)


def adjusted_rows(logits: "Tensor", rows: Any) -> "Tensor":
    """Return `logits_BLV`, or `logits_1LV` of rows one after another, with the adjustments of the rows.

    A row that VERL fills a batch with repeats the fields of another row, and is not trained: it stays as it is.
    """
    import torch

    columns = [rows[name].unbind() for name in _READ]
    is_packed = len(logits) == 1 and len(columns[0]) > 1
    at: list[tuple[int, int]] = []
    found: list[Adjustment] = []
    begin = 0
    for row, (ids, mask, prompt, response, sampling) in enumerate(zip(*columns, strict=True)):
        packed = bytes(sampling.cpu().numpy())
        if packed != UNADJUSTED and bool(mask.any()):
            # the logits at a position are those of the next token
            first = len(ids) - len(response) - 1 + (begin if is_packed else 0)
            at += [(0 if is_packed else row, first + index) for index in range(len(response))]
            found += adjustments(packed, prompt.tolist(), response.tolist())
        begin += len(ids)
    if not found:
        return logits
    place_N, column_N = torch.tensor(at, device=logits.device).unbind(1)
    own_NV = adjusted(logits[place_N, column_N], found)
    return logits.index_put((place_N, column_N), own_NV.masked_fill(own_NV.isneginf(), BLOCKED))


_READ = ("input_ids", "response_mask", "prompts", "responses", SAMPLING_FIELD)
"""Fields of a micro-batch that hold one tensor for each row."""


def register_engines(engines: Any) -> None:
    """Replace VERL's registered engines by subclasses that adjust logits; `engines` is VERL's module of them.

    Raises TrainingError if another plug-in replaced an engine.
    """
    original: Any = engines.FSDPEngineWithLMHead
    replacing = type(f"Adjusting{original.__name__}", (AdjustingEngine, original), {})
    registered: dict[str, dict[Any, Any]] = import_module("verl.workers.engine.base").EngineRegistry._engines[
        "language_model"
    ]
    for strategy in STRATEGIES:
        for device, engine in registered[strategy].items():
            if engine is not original:
                raise TrainingError(f"another plug-in has replaced VERL's engine {strategy}: remove that plug-in")
            registered[strategy][device] = replacing
