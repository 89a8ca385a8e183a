"""Picture of a search for prompts: the tree of candidates with their scores, over the rollouts spent."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from leyden.core.algorithm.prompts.search import PromptSearch
from leyden.core.trainer.run_folder.prompts.search import best_curve, spent_at

NUMBERED = 40
"""Largest number of candidates whose numbers are in the picture."""


def save_search(search: PromptSearch, path: Path, title: str, held_out: Sequence[tuple[float, float]] = ()) -> None:
    """Draw the search into a PNG.

    `held_out` are pairs of rollouts spent and the mean reward on the first held-out set.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    scores = _draw_tree(axes, search)
    _draw_best(axes, search)
    if held_out:
        x, y = zip(*held_out, strict=True)
        axes.plot(x, y, color="#c0504d", marker="o", linestyle="none", label="published prompts, held-out tasks")
        scores += y
    axes.set_xlabel("rollouts spent")
    axes.set_ylabel("mean score")
    axes.set_ylim(bottom=min(0.0, *scores, 0.0), top=max(1.0, *scores, 1.0) * 1.04)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="best")
    axes.set_title(title, fontsize=10, loc="left")
    cast(Any, figure).savefig(path)


def _draw_tree(axes: Any, search: PromptSearch) -> list[float]:
    """Draw the scored candidates and the lines to their parents; return the scores."""
    spent = spent_at(search)
    places = {
        one.number: (spent.get(one.number, 0), score)
        for one in search.candidates
        if (score := one.score) is not None and not one.rejected
    }
    for one in search.candidates:
        for parent in one.parents if one.number in places else ():
            if parent in places:
                (x0, y0), (x1, y1) = places[parent], places[one.number]
                axes.plot([x0, x1], [y0, y1], color="#b8c4ce", linewidth=1, zorder=1)
    if places:
        x, y = zip(*places.values(), strict=True)
        axes.scatter(x, y, s=26, color="#1f4e79", zorder=3, label="candidates, tasks that select them")
    for number, place in places.items() if len(places) <= NUMBERED else ():
        axes.annotate(str(number), place, textcoords="offset points", xytext=(4, -9), fontsize=7, color="#555555")
    if search.best in places:
        axes.scatter(*places[search.best], s=120, marker="*", color="#e0a000", zorder=4, label="best candidate")
    rejected = [spent[one.number] for one in search.candidates if one.rejected and one.number in spent]
    if rejected:
        axes.plot(
            rejected, [0.02] * len(rejected), color="#999999", marker="x", markersize=4, linestyle="none",
            transform=axes.get_xaxis_transform(), label="rejected candidates",
        )  # fmt: skip
    return [score for _, score in places.values()]


def _draw_best(axes: Any, search: PromptSearch) -> None:
    """Draw the curve of the best score, up to what is spent by now."""
    x, y = best_curve(search)
    axes.plot(x, y, color="#1f4e79", linewidth=1.5, alpha=0.6, zorder=2, label="best score so far")
