"""Calls of an algorithm's language model are a phase of the run, counted once however many are under way."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from leyden.core.algorithm.language_model import Completion, LanguageModel, Message, ModelCallError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.run_journal import RunJournal
from leyden.core.trainer.context.watched_model import WatchedModel
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Trackers
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.timing import TimeUsage


class Phases(Display):
    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append(name)


class Gated(LanguageModel):
    """Answers when its gate opens."""

    name, is_priced = "gated", True

    def __init__(self) -> None:
        self.gate, self.closed = asyncio.Event(), False

    async def complete(self, messages: Sequence[Message]) -> Completion:
        await self.gate.wait()
        if messages[0]["content"] == "fail":
            raise ModelCallError("no answer")
        return Completion(text=messages[0]["content"])

    async def close(self) -> None:
        self.closed = True


async def test_calls_at_once_are_one_phase_and_errors_end_it_too(tmp_path: Path) -> None:
    display, model = Phases(), Gated()
    config = RunConfig(name="r", agent="a", policy="p")
    journal = RunJournal(RunFolder(tmp_path), config, display, Trackers(), TimeUsage.now())
    watched = WatchedModel(model, journal)
    assert (watched.name, watched.is_priced) == ("gated", True)
    calls = [asyncio.create_task(watched.complete([{"content": text}])) for text in ("a", "b", "fail")]
    await asyncio.sleep(0)
    assert display.phases == ["reflection"]
    assert "reflection" not in journal.report.seconds_by_phase
    model.gate.set()
    assert [(await calls[0]).text, (await calls[1]).text] == ["a", "b"]
    with pytest.raises(ModelCallError, match="no answer"):
        await calls[2]
    first = journal.report.seconds_by_phase["reflection"]
    await watched.complete([{"content": "c"}])
    assert display.phases == ["reflection"] * 2
    assert journal.report.seconds_by_phase["reflection"] >= first
    await watched.close()
    assert model.closed
