"""Display of a running run: progress bars, JSON lines, or no output."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leyden.core.data.encoding.json_line import json_line
from leyden.core.masking import printable

if TYPE_CHECKING:
    from rich.console import Console


class Display:
    """Silent display and base class. Every method may be called at any time between `start` and `stop`."""

    def start(self, steps: int, done: int) -> None:
        """Start the display of a run of `steps` steps, of which earlier sessions took `done`."""

    def stop(self) -> None:
        """End the display."""

    def show(self, text: str) -> None:
        """Show one line of text."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Start a phase of work, of `total` items if that number is known."""

    def advance(self, done: int) -> None:
        """Set the number of items of the phase that are done."""

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a step that was taken."""


class JsonLines(Display):
    """Display for scripts: writes one JSON object per line to standard output."""

    def show(self, text: str) -> None:
        """Write `{"event": "message", ...}`."""
        self._write({"event": "message", "text": printable(text)})

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write `{"event": "step", ...}` with the step's metrics."""
        self._write({"event": "step", **metrics})

    def _write(self, line: dict[str, Any]) -> None:
        sys.stdout.write(json_line(line))
        sys.stdout.flush()


class Bars(Display):
    """Display with two progress bars.

    The upper bar shows the run, with reward, tokens per second and time left. The lower bar shows the current phase.
    """

    def __init__(self, console: "Console | None" = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.console = console or Console(stderr=True)
        self._clock = clock
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._run = self._progress.add_task("steps", total=None, note="", visible=False)
        self._phase = self._progress.add_task("", total=None, note="")
        self._began = 0.0
        self._steps = self._first = 0

    def start(self, steps: int, done: int) -> None:
        """Show the run's bar."""
        self._steps, self._first = steps, done
        self._progress.start()
        self._progress.update(self._run, total=steps, completed=done, visible=True)

    def stop(self) -> None:
        """Remove the bars."""
        self._progress.update(self._run, visible=False)
        self._progress.update(self._phase, visible=False)
        self._progress.stop()

    def show(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(printable(text), highlight=False, markup=False, emoji=False)

    def phase(self, name: str, total: int | None = None) -> None:
        """Restart the lower bar. The time left is computed from the start of the first training step."""
        if name in ("rollouts", "update") and not self._began:
            self._began = self._clock()
        self._progress.reset(self._phase, total=total, description=name, note="")

    def advance(self, done: int) -> None:
        """Move the lower bar."""
        self._progress.update(self._phase, completed=done)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Move the upper bar and print a line for the step."""
        elapsed = self._clock() - self._began
        left = elapsed / max(1, step - self._first) * (self._steps - step)
        parts = _headline(metrics)
        ends = parts if is_search_step(metrics) else [parts[0], parts[-1]]
        note = " · ".join([*ends, f"about {left:,.0f} s of training left"])
        self._progress.update(self._run, completed=step, note=note, refresh=True)
        self.show("  ".join([f"step {step:>3}/{self._steps}", *parts, f"{metrics['seconds']:.1f} s"]))


def _headline(metrics: Mapping[str, Any]) -> list[str]:
    """Return the summary of a step: its rewards, or for a step without rollouts its loss."""
    if "loss" in metrics and "reward" not in metrics:
        parts = [f"loss {metrics['loss']:.3f}", f"{metrics['transitions_trained']} calls"]
        if "held_out_loss" in metrics:
            parts.append(f"held-out loss {metrics['held_out_loss']:.3f}")
        return [*parts, f"{metrics['tokens_trained']:,} tokens"]
    if is_search_step(metrics):
        return _search_headline(metrics)
    shown = {
        "reward": "reward {:.3f}",
        "rollouts": "{} rollouts",
        "transitions": "{} calls",
        "calls": "{} calls",
        "tokens_per_second": "{:,.0f} tokens/s",
    }
    return [text.format(metrics[name]) for name, text in shown.items() if name in metrics] or ["taken"]


def is_search_step(metrics: Mapping[str, Any]) -> bool:
    """Whether a step is one of a search for prompts, whose reward is the best score so far."""
    return "spent_rollouts" in metrics and "spent_tokens" in metrics


def _search_headline(metrics: Mapping[str, Any]) -> list[str]:
    """Return the summary of a step of a search for prompts: the best score, and what was spent so far."""
    parts = [f"best {metrics['reward']:.3f}"] if "reward" in metrics else []
    parts += [f"{metrics['candidates']} candidates"] if "candidates" in metrics else []
    return [*parts, *search_spending(metrics)]


def search_spending(metrics: Mapping[str, Any]) -> list[str]:
    """Return what a search has spent of its budget, from the metrics of a step."""
    spent = {name.removeprefix("spent_"): number for name, number in metrics.items() if name.startswith("spent_")}
    left = {name.removeprefix("left_"): number for name, number in metrics.items() if name.startswith("left_")}
    return spending(spent, {name: spent.get(name, 0) + number for name, number in left.items()})


def spending(spent: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Return what a search has spent of its budget, as `60 of 100 rollouts`, `600 tokens` and `$0.25 of $1`."""
    lines: list[str] = []
    for name in spent:
        number = "${:,.4g}" if name == "dollars" else "{:,.0f}"
        of = f" of {number.format(limits[name])}" if name in limits else ""
        lines.append(f"{number.format(spent[name])}{of}" + ("" if name == "dollars" else f" {name}"))
    return lines


def make_display(*, quiet: bool = False, json: bool = False) -> Display:
    """Return the display for scripts if `json`, the silent one if `quiet`, else progress bars."""
    if json:
        return JsonLines()
    return Display() if quiet else Bars()
