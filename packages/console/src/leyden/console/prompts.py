"""Prompts of a run: the candidates of a search as a tree, and the texts of its versions."""

from collections.abc import Sequence
from typing import Any

from leyden.console.runs.run import Version
from leyden.core.algorithm.prompts.search import PromptSearch


def prompts_view(search: PromptSearch | None, versions: Sequence[Version]) -> dict[str, Any]:
    """Return the candidates of a search, and the texts of the versions whose texts differ from the version before."""
    texts: list[dict[str, Any]] = []
    for version in versions:
        if version.texts and (not texts or texts[-1]["texts"] != version.texts):
            texts.append({"version": version.version, "texts": version.texts})
    if search is None:
        return {"candidates": [], "best": None, "versions": texts}
    candidates = [
        {
            "number": one.number,
            "parents": list(one.parents),
            "score": one.score,
            "kept": not one.rejected,
            "why": one.rejected or "",
            "step": one.step,
            "texts": dict(one.texts),
        }
        for one in search.candidates
    ]
    return {"candidates": candidates, "best": search.best, "versions": texts}
