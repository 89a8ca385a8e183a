"""Curves of an experiment: for each arm the mean over seeds, with a band from the lowest to the highest seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from leyden.core.experiments.results import ArmResult, RunResult
from leyden.core.trainer.monitoring.curve import points, smooth

Point = tuple[int, float, float, float]
"""Step, and mean, least and greatest value of the seeds that have this step."""


def band(series: Sequence[Sequence[tuple[int, float]]]) -> list[Point]:
    """Return the band of one series of (step, value) for each seed."""
    at: dict[int, list[float]] = {}
    for one in series:
        for step, value in one:
            at.setdefault(step, []).append(value)
    return [(step, sum(found) / len(found), min(found), max(found)) for step, found in sorted(at.items())]


def training_reward(run: RunResult) -> list[tuple[int, float]]:
    """Return the training reward by step, each the mean of up to 5 steps."""
    steps, rewards = points(run.metrics)
    return list(zip(steps, smooth(rewards), strict=True))


def save_curves(arms: Sequence[ArmResult], path: Path, measured: str) -> bool:
    """Draw training reward and evaluations into a PNG; return False if no arm has two points of either.

    The evaluations have a panel of their own only if some arm was evaluated more often than before and after. Raises
    ImportError without matplotlib.
    """
    rewards = {arm.name: band([training_reward(run) for run in arm.runs]) for arm in arms}
    scores = {arm.name: band([run.evaluations for run in arm.runs]) for arm in arms}
    panels = (
        [("training reward, mean of 5 steps", rewards)] if any(len(found) > 1 for found in rewards.values()) else []
    )
    if any(len(found) > 2 for found in scores.values()):
        panels.append((measured, scores))
    if not panels:
        return False
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.8 * len(panels)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    colours: Any = cast(Any, matplotlib).colormaps["tab10" if len(arms) <= 10 else "tab20"]
    for number, (title, lines) in enumerate(panels, 1):
        axes: Any = figure.add_subplot(len(panels), 1, number)
        for at, (name, found) in enumerate(lines.items()):
            if found:
                steps, means, least, most = zip(*found, strict=True)
                axes.plot(steps, means, color=colours(at % colours.N), linewidth=1.6, label=name)
                axes.fill_between(steps, least, most, color=colours(at % colours.N), alpha=0.15, linewidth=0)
        axes.set_xlabel("step")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    cast(Any, figure).savefig(path)
    return True
