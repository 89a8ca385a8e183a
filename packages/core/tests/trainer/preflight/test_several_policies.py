"""The check of a run with two policies: a writer's and a judge's, who speak in each rollout."""

from pathlib import Path
from typing import Any

from leyden.core.data.route import parse_routes

RATE = {"learning_rate": 1e-3}


def two(policy: Path) -> dict[str, str]:
    return {"writer": str(policy), "judge": str(policy)}


def test_both_policies_are_proven(check_run: Any, policy: Path) -> None:
    routes = parse_routes(["agent=judge,to=judge", "node=draft,to=writer", "to=provider"])
    report = check_run(check_run.two_roles, policy=two(policy), routes=routes, algorithm_config=RATE)
    assert report.proven, report.complaint()
    seen = report.result("gradient").seen
    changed, all_of_them = (int(number) for number in seen.split(" weight")[0].split(" of "))
    assert changed == all_of_them, seen


def test_a_policy_that_no_call_reaches_is_named_with_who_spoke(check_run: Any, policy: Path) -> None:
    routes = parse_routes(["agent=juge,to=judge", "to=writer"])
    report = check_run(check_run.two_roles, policy=two(policy), routes=routes, algorithm_config=RATE)
    failure = report.result("selection")
    assert failure.status == "failure"
    assert (
        "policy 'judge' answered no call that is trained; agents and nodes seen: agent 'writer', node 'draft'"
        in failure.seen
    )
