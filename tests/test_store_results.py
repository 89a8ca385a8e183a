"""What `scripts/store_results.py` compares: runs of one example, in all but their store and their time."""

import msgspec

from store_results import Result, different

ONE = Result(
    example="quickstart",
    store="default",
    before=0.4,
    after=0.9,
    sampled_before=0.3,
    sampled_after=0.8,
    rollouts=100,
    seconds=1.0,
    weights="aa",
)


def test_runs_of_an_example_must_have_one_result() -> None:
    same = msgspec.structs.replace(ONE, store="redis", seconds=2.0)
    team = msgspec.structs.replace(ONE, example="team", weights="bb")
    assert different([ONE, same, team]) == []

    for other in (msgspec.structs.replace(same, weights="cc"), msgspec.structs.replace(same, after=0.91)):
        assert different([ONE, other]) == ["quickstart: the run on redis has another result than that on default"]
