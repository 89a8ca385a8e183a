"""`leyden prompts tree`: the candidates of a search for prompts, one of them in full, or a picture of them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.core.cli.options import RUNS, JsonOption, RunsOption
from leyden.core.data.encoding.json_line import json_line
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.algorithm.prompts.search import Candidate, PromptSearch
    from leyden.core.trainer.run_folder.folder import RunFolder
    from leyden.core.trainer.run_folder.prompts.search import SearchProgress


def tree(
    run: Annotated[str, typer.Argument(help="Name or folder of a run that is under way, was killed, or has finished.")],
    *,
    candidate: Annotated[int | None, typer.Option(metavar="NUMBER", help="Show this candidate in full.")] = None,
    round: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Prompt round of a run with several; the last if not given.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Show rejected candidates, too, with the reasons.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the tree into this file.")] = None,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Show the candidates that RUN tried: scores, what each came from, and what was spent."""
    from leyden.core.trainer.run_folder.folder import RunFolder
    from leyden.core.trainer.run_folder.prompts.search import read_prompt_search, search_progress

    if candidate is not None and (all or plot is not None):
        raise UsageError("--candidate shows one candidate; remove --all and --plot")
    folder, config = RunFolder.open(runs, run)
    search = read_prompt_search(folder, config, round)
    if candidate is not None:
        _show_candidate(folder, search, _find(folder, search, candidate), json=json)
        return
    progress = search_progress(folder, config, search)
    if plot is not None:
        _draw(folder, search, plot)
    if json:
        sys.stdout.write(json_line(_described(search, progress)))
        return
    _show_tree(search, progress, rejected=all)
    if plot is not None:
        sys.stdout.write(f"the picture is in {plot}\n")


def _find(folder: "RunFolder", search: "PromptSearch", number: int) -> "Candidate":
    if not 0 <= number < len(search.candidates):
        last = len(search.candidates) - 1
        raise UsageError(f"run {folder.path.name!r} has no candidate {number}; it has 0 to {last}")
    return search.candidates[number]


def _show_tree(search: "PromptSearch", progress: "SearchProgress", *, rejected: bool) -> None:
    from rich.console import Console

    from leyden.core.trainer.monitoring.as_it_is import as_it_is
    from leyden.core.trainer.monitoring.curve import BEST_SCORE, SPENT, text_curve
    from leyden.core.trainer.monitoring.search_tree import summary_lines, tree_table
    from leyden.core.trainer.run_folder.prompts.search import best_curve

    console = Console()
    console.print(tree_table(search, progress, rejected=rejected), highlight=False)
    for line in summary_lines(search, progress, rejected=rejected):
        console.print(as_it_is(line), soft_wrap=True)
    if curve := text_curve(*best_curve(search), BEST_SCORE, SPENT):
        console.print(curve, highlight=False, markup=False)


def _show_candidate(folder: "RunFolder", search: "PromptSearch", one: "Candidate", *, json: bool) -> None:
    from rich.console import Console

    from leyden.core.trainer.monitoring.as_it_is import as_it_is
    from leyden.core.trainer.monitoring.search_tree import candidate_lines, scores_table

    if json:
        sys.stdout.write(json_line(_candidate_in_full(search, one)))
        return
    console = Console()
    for line in candidate_lines(search, one, folder.command("show")):
        console.print(as_it_is(line), soft_wrap=True)
    console.print()
    console.print(scores_table(search, one, _tasks(folder, search)), highlight=False)


def _tasks(folder: "RunFolder", search: "PromptSearch") -> dict[str, str]:
    """Return the tasks of the evaluations as text, by key."""
    from msgspec import json

    found: dict[str, str] = {}
    for held_out in {one.held_out for one in search.evaluations}:
        for row, task in enumerate(folder.tasks(held_out)):
            text = task if isinstance(task, str) else json.encode(task).decode()
            found[f"{held_out or 'train'}/{row}"] = " ".join(text.split())
    return found


def _described(search: "PromptSearch", progress: "SearchProgress") -> dict[str, Any]:
    from msgspec import to_builtins

    from leyden.core.trainer.run_folder.prompts.search import best_scores, spent_at

    spent = spent_at(search)
    candidates = [
        {**_fields(one), "spent_rollouts": spent.get(one.number), "is_best": one.number == search.best}
        for one in search.candidates
    ]
    return {
        **to_builtins(progress),
        "best": search.best,
        "spent": search.spent(),
        "limits": search.limits,
        "left": search.left(),
        "reflections": len(search.reflections),
        "best_scores": best_scores(search),
        "candidates": candidates,
    }


def _candidate_in_full(search: "PromptSearch", one: "Candidate") -> dict[str, Any]:
    from leyden.core.trainer.monitoring.search_tree import evaluations_of
    from leyden.core.trainer.run_folder.prompts.search import text_diff

    bases = (
        {"from_parent": search.candidates[one.parents[0]], "from_start": search.candidates[0]} if one.parents else {}
    )
    diffs = {
        label: {
            name: text_diff(base.texts.get(name, ""), text, (f"candidate {base.number}", f"candidate {one.number}"))
            for name, text in one.texts.items()
            if base.texts.get(name) != text
        }
        for label, base in bases.items()
    }
    evaluations = [
        {"task": key, "score": each.score, "dimensions": each.dimensions, "rollout_id": each.rollout_id}
        for key, each in evaluations_of(search, one)
    ]
    return {**_fields(one), "is_best": one.number == search.best, "diffs": diffs, "evaluations": evaluations}


def _fields(one: "Candidate") -> dict[str, Any]:
    from msgspec.structs import asdict

    return {**asdict(one), "score": one.score}


def _draw(folder: "RunFolder", search: "PromptSearch", path: Path) -> None:
    from leyden.core.trainer.monitoring.search_plot import save_search
    from leyden.core.trainer.run_folder.prompts.search import held_out_points

    if path.suffix != ".png":
        raise UsageError(f"--plot writes a PNG: give a file that ends in .png, not {path}")
    try:
        save_search(
            search, path, f"{folder.path.name}: {len(search.candidates)} candidates", held_out_points(folder.metrics())
        )
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'leyden-core[train]'") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
