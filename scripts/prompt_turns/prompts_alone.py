"""`PromptsAlone`: prompt rounds of `alternate` without any update, for comparison with weights and prompts in turns."""

from leyden.core.algorithm.prompts.alternate import Alternate


class PromptsAlone(Alternate):
    """Every step is a prompt round."""

    name = "prompts_alone"

    def is_prompt_round(self, step: int) -> bool:
        """Whether step number `step` is a prompt round: always."""
        del step
        return True

    def check_steps(self, steps: int) -> None:
        """Take any number of steps."""
        del steps
        self._prompts.check_installed()
