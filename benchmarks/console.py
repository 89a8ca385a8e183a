"""What the console costs: its pages at scale, the memory of a tab, and the training that it looks at.

    python benchmarks/console.py --json console.json
    python benchmarks/console.py --only memory --minutes 30
    python benchmarks/console.py --only training --steps 6 --rounds 5 --tabs 8

It needs Chromium (`--chromium`, or one on the PATH) and the package playwright. Measured are:

- scale: a run of `--rollouts` with 20 spans each. First contentful paint, seconds until the server has read all
  rollouts (and its CPU seconds), milliseconds from a key in the filter to the next frame, and the server's memory.
- runs: a folder of `--runs` small runs. First contentful paint and seconds until the list is there, with a server that
  has just started; then the server's CPU milliseconds for a listing while nothing changes, milliseconds from a key in
  the filter and from a click that sorts to the next frame, seconds until eight runs are compared, and memory.
- store: `--runs` runs of 25 steps in one PostgreSQL store, which the benchmark starts. Runs in the first list, seconds
  until the numbers of all have been read, and the CPU seconds of that.
- memory: a run gets a step and a finished rollout each second for `--minutes`, while one tab shows its curves and
  another its rollouts. JavaScript heap of both tabs after a garbage collection, once a minute, and the server's memory.
- training: seconds of a step of one training, of the calculator example. In turns of `--steps` steps, `--tabs` tabs of
  one window show the run, of which Chromium shows one; or as many windows, all visible; or the console's process is
  stopped. Turns alternate, so that other work on the machine slows all. The first step of each turn, in which the pages
  are loaded, does not count. The ratio of the medians counts, beside the ratio of two halves of the turns without a
  console, which shows the noise. The shares of the machine's CPU time that the console and the browsers used are
  measured, too: without a GPU, Chromium draws all pages in software.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pages.beside_training import training
from pages.processes import BYTES, Served, opened, served
from playwright.sync_api import Page
from stores.filled_runs import GROUP, SPANS, fill, new_run

from leyden.console.runs.catalogue import Catalogue
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.errors import RunError
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport

FILTERS = ("b7", "b50-3", "train-v9", "")
RUN_FILTERS = ("run-07", "experiment-3", "nothing", "")
LISTINGS = 10
COMPARED = 8


def main() -> None:
    """Measure what the arguments name, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("scale", "runs", "store", "memory", "training"), action="append")
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.chromium is None:
        parser.error("there is no Chromium on the PATH: give --chromium")
    if given.steps < 3 or given.rounds < 1:
        parser.error("give at least 3 --steps, of which the first in a turn does not count, and at least 1 of --rounds")
    found: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.only or ("scale", "runs", "store", "training", "memory"):
            found[name] = MEASURES[name](given, Path(temporary))
            print(name, json.dumps(found[name], indent=1), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


# --- Scale


def scale(given: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """Measure the pages of a run with many rollouts."""
    folder = new_run(temporary / "scale", "large")
    fill(folder, given.rollouts)
    with served(folder.path.parent) as console, opened(given.chromium) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.monotonic()
        page.goto(f"{console.address}/#/runs/large/rollouts")
        page.wait_for_selector("main h1")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        count = "() => fetch('api/runs/large/rollouts?after=999999999').then(answer => answer.json())"
        while (known := page.evaluate(count))["indexed"] < max(known["total"], 1):
            time.sleep(0.5)
        read = time.monotonic() - began
        page.wait_for_timeout(3_000)
        return {
            "rollouts": given.rollouts,
            "spans": SPANS,
            "first_paint_ms": paint,
            "read_seconds": read,
            "server_cpu_seconds": console.cpu_seconds(),
            "server_mib": console.mib(),
            "filter_ms": {text or "(all)": filtered(page, text) for text in FILTERS},
        }


def filtered(page: Page, text: str) -> float:
    """Return the milliseconds from a new text of the filter until the next frame has been drawn."""
    return page.evaluate(
        """async text => {
            const box = document.querySelector("main input[type=search]");
            const began = performance.now();
            box.value = text;
            box.dispatchEvent(new Event("input", { bubbles: true }));
            await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)));
            return performance.now() - began;
        }""",
        text,
    )


# --- Runs


def runs(given: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """Measure the list of many runs."""
    folder = temporary / "many"
    names = many_runs(folder, given.runs)
    with served(folder) as console, opened(given.chromium) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.monotonic()
        page.goto(f"{console.address}/#/runs")
        page.wait_for_selector("main tbody tr[aria-rowindex]")
        listed = time.monotonic() - began
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        count = page.locator("main p.note").first.inner_text()
        filters = {text or "(all)": filtered(page, text) for text in RUN_FILTERS}
        sorts = {title: sorted_by(page, title) for title in ("Run", "Reward", "Last written")}
        heap = heap_mib(page)
        page.goto(f"{console.address}/#/compare?runs={','.join(names[:COMPARED])}")
        began = time.monotonic()
        page.wait_for_selector("main .big-chart > *")
        compared = time.monotonic() - began
        page.close()
        return {
            "runs": given.runs,
            "shown": count,
            "first_paint_ms": paint,
            "first_list_seconds": listed,
            "later_list": later_lists(console),
            "filter_ms": filters,
            "sort_ms": sorts,
            "compare_eight_seconds": compared,
            "tab_mib": heap,
            "server_mib": console.mib(),
        }


def later_lists(console: Served) -> dict[str, float]:
    """Return CPU and wall-clock milliseconds of the server for a list of runs of which none has changed."""
    cpu, wall = console.cpu_seconds(), 0.0
    for _ in range(LISTINGS):
        time.sleep(1.1)
        began = time.monotonic()
        with urlopen(f"{console.address}/api/runs") as answer:
            answer.read()
        wall += time.monotonic() - began
    return {
        "cpu_ms": 1000 * (console.cpu_seconds() - cpu) / LISTINGS,
        "wall_ms": 1000 * wall / LISTINGS,
    }


def sorted_by(page: Page, title: str) -> float:
    """Return the milliseconds from a click at a column's title until the next frame has been drawn."""
    return page.evaluate(
        """async title => {
            const heads = [...document.querySelectorAll("main th button.sort")];
            const began = performance.now();
            heads.find(one => one.textContent === title).click();
            await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)));
            return performance.now() - began;
        }""",
        title,
    )


def many_runs(folder: Path, count: int) -> list[str]:
    """Make runs that have finished, that were interrupted, and that ended before their first step; return their names.

    Each is a copy of one run with the name, the experiment, the metrics and the state changed.
    """
    pattern = new_run(folder.parent / "pattern", "pattern")
    for step in range(1, 21):
        pattern.append_metrics({"step": step, "reward": step / 20, "loss": 0.1, "groups": 16, "seconds": 1.0})
    with pattern.locked():  # leaves its file
        config = pattern.config_file.read_text()
    names = [f"run-{number:04}" for number in range(count)]
    for number, name in enumerate(names):
        run = RunFolder(folder / name)
        shutil.copytree(pattern.path, run.path)
        text = config.replace("name: pattern", f"name: {name}").replace(
            "experiment: null", f"experiment: experiment-{number % 17}"
        )
        run.config_file.write_text(text)
        if number % 5:
            run.write_report(RunReport(name=name, seed=0, steps=20, seconds=20.0 + number))
        elif number % 2:
            run.note_failure(RunError("the agent could not be loaded"))
    return names


# --- Store


def store(given: argparse.Namespace, _: Path) -> dict[str, Any]:
    """Measure the list of many runs that are in one store alone."""
    with PostgresServer() as server:
        uri = server.uri_of(server.create())
        asyncio.run(many_stored_runs(uri, given.runs))
        return asyncio.run(listed(uri, given.runs))


async def many_stored_runs(uri: str, count: int) -> None:
    """Record runs of 25 steps with 45 numbers each, and their versions."""
    store = await open_store(uri)
    numbers = {f"number_{number}": number / 7 for number in range(45)}
    values = [{"held_out/val/success": 0.25}, *({**numbers, "reward": step / 25} for step in range(1, 26))]
    for number in range(count):
        name = f"run-{number:04}"
        await store.add_run(Run(run_id=name, name=name, config={"steps": 25, "policy": "policy"}))
        await store.add_metrics(name, [StepMetrics(step=step, values=own) for step, own in enumerate(values)])
        versions = [PolicyVersion(run_id=name, version=step, metrics=own) for step, own in enumerate(values)]
        await store.add_policy_versions(versions)
        await store.update_run(name, status="succeeded")
    await store.close()


async def listed(uri: str, count: int) -> dict[str, Any]:
    """Request the list as a page does, until it is complete."""
    catalogue, began, cpu = Catalogue([], [uri]), time.monotonic(), time.process_time()
    found = await catalogue.listing()
    first = {"runs": len(found.runs), "seconds": time.monotonic() - began}
    while found.problems or len(found.runs) < count:
        await asyncio.sleep(0.1)
        found = await catalogue.listing()
    await catalogue.close()
    return {"first": first, "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}


# --- Memory


def memory(given: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """Measure the memory of two tabs while a run goes on."""
    folder = new_run(temporary / "memory", "live")
    with served(folder.path.parent) as console, opened(given.chromium) as browser, folder.locked():
        pages = {"run": browser.new_page(), "rollouts": browser.new_page()}
        fill(folder, GROUP)
        for name, page in pages.items():
            page.goto(f"{console.address}/#/runs/live{'' if name == 'run' else '/rollouts'}")
            page.wait_for_selector("main h1")
        heaps: dict[str, list[float]] = {name: [] for name in pages}
        server: list[float] = []
        end, step = time.monotonic() + 60 * given.minutes, 1
        while time.monotonic() < end:
            minute = time.monotonic() + 60
            while time.monotonic() < minute:
                step += 1
                fill(folder, 1, step)
                time.sleep(max(0.0, 1 - time.monotonic() % 1))
            for name, page in pages.items():
                page.bring_to_front()
                heaps[name].append(heap_mib(page))
            server.append(console.mib())
        shown = pages["run"].locator("main .crumbs").inner_text()
    fifth = max(1, len(server) // 5)
    return {
        "minutes": given.minutes,
        "steps": step,
        "shown_at_the_end": shown,
        "heap_mib": heaps,
        "server_mib": server,
        "last_by_first_fifth": {
            name: statistics.mean(values[-fifth:]) / statistics.mean(values[:fifth])
            for name, values in {**heaps, "server": server}.items()
        },
    }


def heap_mib(page: Page) -> float:
    """Return the JavaScript heap of a tab after a garbage collection."""
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used / BYTES


MEASURES = {"scale": scale, "runs": runs, "store": store, "memory": memory, "training": training}

if __name__ == "__main__":
    main()
