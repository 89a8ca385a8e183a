"""What recording adds to an agent: to a model call, a rollout, memory and imports, beside what others add, in one run.

Every framework's driver (`overhead/on_<framework>.py`) makes the same calls, of about a thousand tokens, to a fake
model in its own process, and runs an agent that calls the model twice and a tool between. What is recorded goes to
something that keeps nothing. `bare` is the agent alone, the floor, measured in every environment; `span` is a bare span
of OpenTelemetry's around the model's answer; `leyden` the adapter as in a runner, `leyden-otel` its instrumentor
writing to a provider of the user's. OpenInference and AgentOps take part when the Python of an environment that holds
them, and the frameworks, is given.

    python benchmarks/adapters.py --json adapters.json --openinference ENV/bin/python --agentops ENV/bin/python

Every measurement is a fresh process, and the ways take turns. CPU time is compared, because neighbours disturb the
clock more. Whatever disturbs a measurement adds to it: time is read from the quickest quarter of a process's runs, and
from the quickest process of each way. Only differences and ratios within a run count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

HERE = Path(__file__).parent
FRAMEWORKS = sorted(path.stem.removeprefix("on_") for path in (HERE / "overhead").glob("on_*.py"))
OURS = ("bare", "span", "leyden", "leyden-otel")
TITLES = ("framework", "environment", "way")
COLUMNS = {
    **dict.fromkeys(("call_cpu_us", "call_p50_us", "rollout_cpu_us", "rollout_p50_us", "held_bytes", "kept_bytes"), 0),
    **{"import_s": 2, "call_spans": 1, "rollout_spans": 1},
}
"""With how many decimal places they are shown."""
LIMIT_SECONDS = 300
NOT_THERE = ("LookupError", "ModuleNotFoundError")
"""Ends of a measurement that say that a way has nothing for the framework, or the environment lacks one of both."""
QUIET = {
    "OTEL_SDK_DISABLED": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "",  # with one, the Agents SDK would send its own traces to OpenAI
}

Environments: TypeAlias = dict[str, tuple[str, tuple[str, ...]]]
"""By name: a Python, and the ways that it is there for; `bare` is the floor of the others."""


def measure(python: str, framework: str, way: str, calls: int, rollouts: int) -> dict[str, Any]:
    """Measure in a fresh process; where there is nothing to measure, `missing` says why."""
    command = [python, "-m", "overhead.worker", framework, way, str(calls), str(rollouts)]
    done = subprocess.run(
        command,
        cwd=HERE,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or ["no word"]
        if last.startswith(NOT_THERE):
            return {"missing": last.partition(": ")[2]}
        raise SystemExit(f"{framework}, {way}: {last}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(frameworks: list[str], environments: Environments, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every way for every framework, in turns."""
    found: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for framework in frameworks:
            for environment, (python, ways) in environments.items():
                for way in ways:
                    row = measure(python, framework, way, options.calls, options.rollouts)
                    place = {"framework": framework, "environment": environment, "way": way, "round": number}
                    found.append(place | row)
    return found


def summarise(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rounds came to, less the bare agent in the same environment; the bare agents' as they are."""
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys(map(_place, rounds)):
        if missing := _missing(rounds, *place):
            rows.append({**dict(zip(TITLES, place, strict=True)), "missing": missing})
            continue
        here, floor = _over(rounds, *place), _over(rounds, *place[:2], "bare")
        values = here if place[2] == "bare" else {key: here[key] - floor[key] for key in COLUMNS}
        rows.append({**dict(zip(TITLES, place, strict=True)), **values})
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """CPU time that the others add over what `leyden` adds, for each framework; who records no span is left out."""
    added = {(row["framework"], row["way"]): row for row in rows if row["way"] != "bare" and "missing" not in row}
    return {
        f"{framework}: {way} over leyden, {what}": row[f"{what}_cpu_us"] / added[framework, "leyden"][f"{what}_cpu_us"]
        for (framework, way), row in added.items()
        if not way.startswith("leyden") and (framework, "leyden") in added
        for what in ("call", "rollout")
        if row[f"{what}_spans"]
    }


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["framework"], row["environment"], row["way"]


def _missing(rounds: list[dict[str, Any]], framework: str, environment: str, way: str) -> str | None:
    places = ((framework, environment, way), (framework, environment, "bare"))
    return next((r["missing"] for r in rounds if "missing" in r and _place(r) in places), None)


def _over(rounds: list[dict[str, Any]], framework: str, environment: str, way: str) -> dict[str, float]:
    """The least of each time of a call or a rollout, and the median of anything else."""
    place = (framework, environment, way)
    mine = [r for r in rounds if _place(r) == place]
    return {key: (min if key.endswith("_us") else statistics.median)(r[key] for r in mine) for key in COLUMNS}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print("".join(f"{title:>15}" for title in (*TITLES, *COLUMNS)))
    for row in rows:
        place = "".join(f"{row[title]:>15}" for title in TITLES)
        values = "".join(f"{row[key]:>15,.{places}f}" for key, places in COLUMNS.items() if key in row)
        print(place + (values or f"  not measured: {row['missing']}"))


def main() -> None:
    """Run the comparison, print its table, write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=400, help="model calls in each measurement")
    parser.add_argument("--rollouts", type=int, default=60, help="rollouts in each measurement")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help=f"some of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--openinference", metavar="PYTHON")
    parser.add_argument("--agentops", metavar="PYTHON")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    environments: Environments = {"ours": (sys.executable, OURS)}
    for peer in ("openinference", "agentops"):
        if python := getattr(options, peer):
            environments[peer] = (
                os.path.abspath(python),
                ("bare", peer),
            )  # not resolved: a link says which environment
    rounds = compare(options.frameworks.split(","), environments, options)
    rows = summarise(rounds)
    print(
        "Added to the bare agent of the same environment (bare: as it is), the quickest of", options.rounds, "rounds:"
    )
    show(rows)
    print("\nCPU time that others add, over what leyden adds:")
    print("\n".join(f"  {name:<60}{ratio:8.2f} x" for name, ratio in ratios(rows).items()))
    if options.json:
        result = {"rows": rows, "ratios": ratios(rows), "rounds": rounds}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
