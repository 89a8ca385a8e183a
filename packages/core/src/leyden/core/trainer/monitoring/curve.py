"""Reward curve: draws the lines of `metrics.jsonl` in the terminal and as a PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from leyden.core.trainer.monitoring.display import is_search_step

Metrics = dict[str, Any]


BEST_SCORE, SPENT = "best score on the tasks that select candidates", "rollouts spent"
"""Title and label of the curve of a search for prompts."""


def points(metrics: Sequence[Metrics]) -> tuple[list[int], list[float]]:
    """Return steps and mean training rewards of the lines that have both."""
    lines = [line for line in metrics if line.get("reward") is not None]
    return [line["step"] for line in lines], [line["reward"] for line in lines]


def is_search(metrics: Sequence[Metrics]) -> bool:
    """Whether the steps are those of a search for prompts, whose rewards are the best scores so far."""
    return any(is_search_step(line) for line in metrics)


def smooth(values: Sequence[float], window: int = 5) -> list[float]:
    """Return the trailing mean over up to `window` values."""
    return [sum(part) / len(part) for end in range(1, len(values) + 1) if (part := values[max(0, end - window) : end])]


def terminal_curve(metrics: Sequence[Metrics], width: int = 72, height: int = 14) -> str:
    """Return the curve as text, or an installation hint if plotext is missing; empty for fewer than two points."""
    steps, rewards = points(metrics)
    title, label = "mean reward of training rollouts", "step"
    if is_search(metrics):
        steps = [line["spent_rollouts"] for line in metrics if line.get("reward") is not None]
        title, label = BEST_SCORE, SPENT
    return text_curve(steps, rewards, title, label, width, height)


def text_curve(
    x: Sequence[float], y: Sequence[float], title: str, label: str, width: int = 72, height: int = 14
) -> str:
    """Return a line through points as text, or an installation hint; empty for fewer than two points."""
    if len(x) < 2:
        return ""
    try:
        import plotext
    except ImportError:
        return "to see the reward curve here: pip install 'leyden-core[train]'"
    figure: Any = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.draw(figure.signal(x, y, marker="braille").lines())
    figure.title(title)
    figure.label(label)
    plain: Any = cast(Any, plotext).uncolorize(str(figure.build()))
    return plain


def save_curve(metrics: Sequence[Metrics], path: Path, title: str, held_out: Sequence[tuple[int, float]] = ()) -> bool:
    """Draw the curve into a PNG; return False without writing if there are fewer than two points.

    `held_out` holds (step, mean reward) pairs of the first held-out set.
    """
    steps, rewards = points(metrics)
    if len(steps) < 2:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    axes.plot(
        steps, rewards, color="#9db4c8", linewidth=1, marker=".", markersize=4, label="training reward, each step"
    )
    axes.plot(steps, smooth(rewards), color="#1f4e79", linewidth=2, label="training reward, mean of 5 steps")
    if held_out:
        x, y = zip(*held_out, strict=True)
        axes.plot(x, y, color="#c0504d", marker="o", linestyle="none", label="held-out tasks, the agent's own sampling")
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.set_ylim(bottom=min(0.0, *rewards), top=max(1.0, *rewards) * 1.02)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title(title, fontsize=10, loc="left")
    cast(Any, figure).savefig(path)
    return True
