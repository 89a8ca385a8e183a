# pyright: basic
"""A crew that answers questions about market reports: a researcher, an analyst and a writer."""

import csv
from pathlib import Path

from crewai import LLM, Agent, Crew, Process, Task
from crewai.tools import tool

REGIONS = ("north", "south", "east")
QUARTERS = ("Q1", "Q2", "Q3", "Q4")


def read_reports(folder: Path) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """Read the sales by report, product and quarter, a number for each region, from all files of the folder."""
    sales: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                sales[row["report"], row["product"], row["quarter"]] = tuple(int(row[region]) for region in REGIONS)
    return sales


SALES = read_reports(Path(__file__).parent / "reports")


@tool("look_up")
def look_up(report: str, product: str, quarter: str, figure: str) -> str:
    """Look up sales or growth of a product by region."""
    if figure not in ("sales", "growth"):
        return "error: figure must be sales or growth"
    now = SALES.get((report, product, quarter))
    if now is None:
        return "error: not in the reports"
    if figure == "growth":
        before = SALES.get((report, product, QUARTERS[QUARTERS.index(quarter) - 1]))
        if quarter == "Q1" or before is None:
            return "error: no earlier quarter"
        now = tuple(new - old for new, old in zip(now, before, strict=True))
    return ", ".join(f"{region} {number}" for region, number in zip(REGIONS, now, strict=True))


@tool("pick", result_as_answer=True)
def pick(figures: str, which: str) -> str:
    """Pick the highest or lowest of the figures."""
    try:
        numbers = {region: int(number) for region, number in (each.split() for each in figures.split(","))}
    except ValueError:
        return "error: figures must be like: north 12, south 7"
    if which not in ("highest", "lowest"):
        return "error: which must be highest or lowest"
    region = (max if which == "highest" else min)(numbers, key=lambda name: numbers[name])
    return f"{region} {numbers[region]}"


llm = LLM(model="gpt-4.1-mini", api_key="sk-your-key-here", temperature=0)

researcher = Agent(
    role="researcher",
    goal="Look up the figures.",
    backstory="You read market reports.",
    llm=llm,
    tools=[look_up],
    respect_context_window=False,
    verbose=False,
)
analyst = Agent(
    role="analyst",
    goal="Pick the region.",
    backstory="You compare figures.",
    llm=llm,
    tools=[pick],
    respect_context_window=False,
    verbose=False,
)
writer = Agent(
    role="writer",
    goal="State the finding.",
    backstory="You write short statements.",
    llm=llm,
    respect_context_window=False,
    verbose=False,
)

research = Task(description="{question}", expected_output="the figures", agent=researcher)
analysis = Task(
    description="{question}", expected_output="the region and its figure", agent=analyst, context=[research]
)
statement = Task(
    description="State the finding.", expected_output="Finding: <region> <figure>", agent=writer, context=[analysis]
)

crew = Crew(
    agents=[researcher, analyst, writer],
    tasks=[research, analysis, statement],
    process=Process.sequential,
    verbose=False,
)
