"""Progress of an experiment or a study: what a program receives of it."""

from pathlib import Path

from leyden.core.experiments.plan import Job
from leyden.core.experiments.progress import Progress


def test_a_program_gets_the_number_of_ended_runs_and_of_all_whenever_one_changes() -> None:
    counts: list[tuple[int, int]] = []
    progress = Progress(6, quiet=True, count=lambda done, total: counts.append((done, total)))
    job = Job(name="trial-0-seed-0", seed=0, folder=Path("s/trial-0-seed-0"), arm="trial 0", settings={})

    progress.start()
    progress.begin(job, resumes=False)
    progress.leave_out(2)
    progress.end(job, "finished", None, was_there=False)

    assert counts == [(0, 6), (0, 4), (1, 4)]
