"""Studies in a real browser: the list, a study that goes on while it is shown, and a search that a page starts."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from accessibility import violations_everywhere
from browser_page import new_page
from console_runs import made_run
from playwright.sync_api import Browser, Page, expect
from scripted_studies import Settings, begin_run, end_run, evaluate, open_storage, run_trials, study_plan

from leyden.core.trainer.config import EvaluationSet
from leyden.core.tuning import execution
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.results import read_result

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PICTURES = Path(__file__).parents[2] / "docs/console"


def planned(folder: Path) -> StudyPlan:
    """The plan of a study of two keys."""
    return study_plan(folder, "learning_rate=1e-4..1e-2:log", "credit=uniform,discounted", prunes=False)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: one run, and a study of nine trials with a confirmation; a tenth trial is under way."""
    runs = tmp_path_factory.mktemp("template")
    made_run(runs)
    plan = planned(runs / "s")
    plan.check_unchanged()

    def script(settings: Settings) -> list[float]:
        options = settings["algorithm_config"]
        score = 0.5 + 0.2 * (options["learning_rate"] > 2e-3) + 0.1 * (options.get("credit") == "discounted")
        return [0.1, 0.2, 0.3, round(score + 0.05 * (settings["name"].endswith("3-seed-0")), 2)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "PAUSE", 0.0)
        run_trials(plan, script, trials=9)
    storage = open_storage(plan)
    best = read_result(plan, storage).best
    trial = storage.begin_next()
    storage.close()
    assert best is not None and trial is not None
    (job,) = plan.trial(trial.number, trial.values)
    begin_run(job.folder, job.settings or {})
    other = EvaluationSet(name="other", source="other.jsonl")
    for number, values, score in ((best.number, best.values, 0.9), (0, None, 0.5)):
        for job in plan.confirmation(number, values, other, [1, 2]):
            run = begin_run(job.folder, job.settings or {})
            evaluate(run, 4, score)
            end_run(run, 4)
    (plan.folder / "best.yaml").write_text(json.dumps(plan.settings(best.values)))
    return runs


@pytest.fixture
def runs(template: Path, tmp_path: Path) -> Path:
    """A copy of the folder of runs."""
    return Path(shutil.copytree(template, tmp_path / "runs"))


def opened(browser: Browser, address: str) -> tuple[Page, list[str]]:
    """A page at an address, and the errors that it reports."""
    page, errors = new_page(browser)
    page.goto(address)
    return page, errors


def go(page: Page, route: str) -> None:
    """Open another view of the console."""
    page.evaluate("route => { location.hash = route }", route)


def test_a_study_is_found_read_and_followed_while_it_goes_on(browser: Browser, serve: Any, runs: Path) -> None:
    page, errors = opened(browser, serve("--runs", str(runs)))

    page.get_by_role("link", name="Studies").click()
    page.get_by_role("link", name="s", exact=True).click()

    expect(page.get_by_text("This is optimistic: the trial is the best of 9")).to_be_visible()
    expect(page.get_by_text("Confirmed: the whole interval is above 0.")).to_be_visible()
    expect(page.get_by_role("table", name="Importance of the searched keys")).to_be_visible()
    expect(page.locator(".slice")).to_have_count(2)
    expect(page.locator(".command code")).to_contain_text("leyden train --config")
    table = page.get_by_role("table", name="Trials")
    expect(table.locator("tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Trial 2", exact=True).click()
    assert page.evaluate("location.hash") == "#/studies/s?trial=2"
    expect(table.locator("tr.picked")).to_have_count(1)

    storage = open_storage(planned(runs / "s"))
    storage.finish(9, 0.95)
    storage.close()

    expect(page.get_by_text("Best: trial 9, 95.0 %")).to_be_visible(timeout=15_000)
    expect(page.get_by_text("The confirmation is of trial")).to_be_visible()
    expect(page.get_by_text("best.yaml is from an earlier report")).to_be_visible()
    expect(table.locator("tr.picked")).to_have_count(1)
    page.get_by_label("Order").select_option("score")
    expect(table.locator("tbody tr").first).to_contain_text("95.0 %")

    table.get_by_role("link", name="seed 0").nth(1).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("trial-")
    page.go_back()
    page.get_by_role("link", name="Compare these runs").click()
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    assert errors == []


def test_a_page_prepares_a_search_and_starts_it_if_the_console_may(browser: Browser, serve: Any, runs: Path) -> None:
    page, errors = opened(browser, serve("--runs", str(runs)))
    go(page, "#/runs/small")
    page.get_by_role("link", name="Suggest settings").click()
    line = page.locator(".command code").first
    expect(line).to_contain_text("--search learning_rate=2e-05..0.0005:log")
    page.get_by_label("learning_rate", exact=True).uncheck()
    page.get_by_label("Values of epochs").fill("1..2:int")
    page.get_by_label("Trials", exact=True).fill("4")
    expect(line).to_contain_text("--search epochs=1..2:int --name small-tune --trials 4")
    expect(line).not_to_contain_text("learning_rate")
    hash_now = page.evaluate("location.hash")
    expect(page.get_by_text("This console only reads")).to_be_visible()

    acting, more = opened(browser, serve("--runs", str(runs), "--allow-actions"))
    go(acting, hash_now)
    expect(acting.locator(".command code").first).to_have_text(line.inner_text())
    acting.get_by_role("button", name="Start the search").click()
    expect(acting.get_by_role("alert")).to_contain_text("val.jsonl does not exist", timeout=60_000)
    assert acting.get_by_text("Open the study").count() == 0
    assert (errors, ["422" in one for one in more]) == ([], [True])


def test_no_page_of_a_study_breaks_a_rule_of_accessibility(browser: Browser, serve: Any, runs: Path) -> None:
    page, _ = opened(browser, serve("--runs", str(runs), "--allow-actions"))
    found: dict[str, list[str]] = {}
    for route, sign in (
        ("studies", "s"),
        ("studies/s?trial=2", "Best settings"),
        ("runs/small/suggestions", "Command"),
    ):
        go(page, f"#/{route}")
        expect(page.get_by_text(sign, exact=True).first).to_be_visible()
        found[route] = violations_everywhere(page)
    assert found == {route: [] for route in found}


def test_a_study_is_seen_as_a_whole(browser: Browser, serve: Any, runs: Path, tmp_path: Path) -> None:
    """With LEYDEN_PICTURES=STUDY, the folder of a study among runs, the picture of docs/console.md is taken of it."""
    pictured = Path(os.environ.get("LEYDEN_PICTURES", ""))
    is_pictured = (pictured / "study.json").exists()
    study = pictured if is_pictured else runs / "s"
    page, errors = opened(browser, serve("--runs", str(study.parent)))
    go(page, f"#/studies/{study.name}")
    expect(page.get_by_role("table", name="Trials")).to_be_visible()
    page.locator(".slice").first.scroll_into_view_if_needed()
    page.set_viewport_size({"width": 1280, "height": 2000})
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(1_000)
    page.screenshot(path=PICTURES / "study.png" if is_pictured else tmp_path / "study.png")
    assert errors == []
