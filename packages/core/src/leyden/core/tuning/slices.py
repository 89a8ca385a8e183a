"""Slice plots of a study: for each searched key, the score of every trial by its value."""

from pathlib import Path
from typing import Any, cast

from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.results import StudyResult
from leyden.core.tuning.space import Choices, Range

SLICES_FILE = "slices.png"
COLUMNS = 3


def save_slices(plan: StudyPlan, result: StudyResult, path: Path) -> bool:
    """Draw a panel for each searched key into a PNG; return False if fewer than two trials have a score.

    Raises ImportError without matplotlib.
    """
    shown = [trial for trial in result.trials if trial.score is not None]
    if len(shown) < 2:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    columns = min(COLUMNS, len(plan.space))
    rows = -(-len(plan.space) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for number, (key, domain) in enumerate(plan.space.items(), 1):
        axes: Any = figure.add_subplot(rows, columns, number)
        if isinstance(domain, Choices):
            axes.set_xticks(range(len(domain.settings)), list(domain.settings))
        else:
            axes.set_xscale("log" if domain.log else "linear")
            axes.set_xlim(*_ends(domain))
            if domain.log and domain.high >= 10 * domain.low:  # labels between the powers of ten would overlap
                axes.xaxis.set_minor_formatter(NullFormatter())
        for trial in shown:
            if key in trial.values:
                at = trial.values[key]
                x = list(domain.settings).index(str(at)) if isinstance(domain, Choices) else at
                style = {"marker": "*", "s": 110} if trial.is_default else {"marker": "o", "s": 30}
                colour = "tab:red" if trial.is_default else "tab:blue" if trial.state == "finished" else "lightgrey"
                axes.scatter([x], [trial.score], color=colour, edgecolors="none", **style)
        axes.set_xlabel(key)
        axes.set_ylabel(f"score on {plan.measured.name}")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    cast(Any, figure).suptitle("blue: finished; grey: stopped early, latest score; red star: default", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    cast(Any, figure).savefig(path)
    return True


def _ends(domain: Range) -> tuple[float, float]:
    """Return the ends of an axis: those of the range, with some room for the points there."""
    if domain.log:
        room = (domain.high / domain.low) ** 0.04
        return domain.low / room, domain.high * room
    room = 0.04 * (domain.high - domain.low)
    return domain.low - room, domain.high + room
