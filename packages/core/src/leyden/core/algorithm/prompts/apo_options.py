"""`APOConfig`: the options of APO."""

import msgspec

from leyden.core.algorithm.language_model import ModelOptions
from leyden.core.algorithm.prompts.apo_templates import (
    EDIT_TEMPLATE,
    GRADIENT,
    GRADIENT_TEMPLATE,
    PROMPT,
    ROLLOUTS,
    read_templates,
)
from leyden.core.algorithm.prompts.base import PromptAlgorithmOptions
from leyden.core.errors import UsageError

TEMPLATES = ("gradient_template", "edit_template")


class APOConfig(PromptAlgorithmOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of APO. A step of the run is a round of the beam search."""

    edit: ModelOptions | None = None
    """The model that applies a textual gradient; None: the reflection model."""
    diversity_temperature: float | None = 1.0
    """Temperature of both models where their own options name none; None: the models' default."""
    beam_width: int = 4
    """Candidates that a round keeps, and parents of a round. If there are fewer, they are its parents in turn."""
    branch_factor: int = 4
    """New candidates from each parent of a round, each from a minibatch of its own."""
    minibatch: int = 4
    """Training tasks that a parent runs on for one textual gradient."""
    worst: int = 3
    """Rollouts of the minibatch with the lowest scores that the reflection model reads."""
    best: int = 1
    """Rollouts of the minibatch with the highest scores that it reads beside them."""
    perfect_score: float | None = None
    """Score that cannot be exceeded: no textual gradient is requested if a whole minibatch has it. None: always."""
    validation_batch: int = 16
    """Validation tasks on which the candidates of a round are compared. The best one then runs on all of them."""
    initial_validation: bool = True
    """Whether the first prompts run on all validation tasks before the first round."""
    gradient_template: str | list[str] | None = None
    """Request for a textual gradient, with `<prompt>` for the current text and `<rollouts>` for the rollouts. Text or
    path of a text file; several are used in turn. None: Leyden's own."""
    edit_template: str | list[str] | None = None
    """Request for an edit, with `<prompt>` and `<gradient>`. Text or path of a text file; several are used in turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lowest = {"beam_width": 1, "branch_factor": 1, "minibatch": 1, "worst": 1, "best": 0, "validation_batch": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.diversity_temperature is not None and self.diversity_temperature < 0:
            raise UsageError(f"diversity_temperature must not be negative: {self.diversity_temperature}")
        for name, templates in zip(TEMPLATES, (self.gradient_templates(), self.edit_templates()), strict=True):
            if getattr(self, name) is not None:  # from now on the text, not its file
                msgspec.structs.force_setattr(self, name, templates)

    def models(self) -> tuple[ModelOptions, ...]:
        """Return the reflection model, and the model that applies edits if it is another one."""
        given = (self.reflection,) if self.edit is None else (self.reflection, self.edit)
        return tuple(self._with_temperature(one) for one in given)

    def gradient_templates(self) -> list[str]:
        """Return the templates of a textual gradient."""
        return read_templates("gradient_template", self.gradient_template, GRADIENT_TEMPLATE, (PROMPT, ROLLOUTS))

    def edit_templates(self) -> list[str]:
        """Return the templates of an edit."""
        return read_templates("edit_template", self.edit_template, EDIT_TEMPLATE, (PROMPT, GRADIENT))

    def _with_temperature(self, options: ModelOptions) -> ModelOptions:
        if options.temperature is not None or options.function is not None:
            return options
        return msgspec.structs.replace(options, temperature=self.diversity_temperature)
