"""One process of TRL's `GRPOTrainer` with a clock around its steps: `python -m steps.trl SETTINGS`, in JSON.

It runs under any Python that holds TRL and needs nothing of Leyden. TRL is reached by name: where this file is checked,
it is not installed.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from steps.meter import Meter
from steps.task import reward_of


def main(settings: dict[str, Any]) -> None:
    """Train as `settings` say, and write the steps."""
    torch, transformers, datasets, trl = (import_module(name) for name in ("torch", "transformers", "datasets", "trl"))
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    meter = Meter(Path(settings["steps_file"]), time.process_time)

    def score(completions: list[str], answer: list[int], **_: object) -> list[float]:
        rewards = [reward_of(text, right) for text, right in zip(completions, answer, strict=True)]
        meter.step.reward = sum(rewards) / len(rewards)
        return rewards

    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            meter.end_step()

    trainer = trl.GRPOTrainer(
        model=settings["policy"],
        reward_funcs=score,
        args=trl.GRPOConfig(**settings["config"]),
        train_dataset=datasets.Dataset.from_list(settings["rows"]),
        callbacks=[Ends()],
    )
    time_phases(trainer, meter)
    trainer.train()


def time_phases(trainer: Any, meter: Meter) -> None:
    """Count generation under `generate`, rewards and what else comes of it under `score`; the rest is the update."""
    generate, score = trainer._generate, trainer._generate_and_score_completions

    def timed_generate(*given: Any, **named: Any) -> Any:
        with meter.phase("generate"):
            return generate(*given, **named)

    def timed_score(*given: Any, **named: Any) -> Any:
        with meter.phase("score"):
            found = score(*given, **named)
        meter.step.rollouts += found["completion_ids"].shape[0]
        meter.step.prompt_tokens += int(found["prompt_mask"].sum())
        meter.step.response_tokens += int(found["completion_mask"].sum())
        meter.step.tokens_trained += int(found["completion_mask"].sum())
        return found

    trainer._generate, trainer._generate_and_score_completions = timed_generate, timed_score


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
