import msgspec
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.trainer.run_folder.early_stopping import BestVersion, rises
from leyden.core.trainer.run_folder.versions import Evaluation


def evaluation(*rewards: float) -> Evaluation:
    return Evaluation(success=sum(rewards) / len(rewards), rewards={str(n): reward for n, reward in enumerate(rewards)})


def solved(count: int, of: int = 20) -> Evaluation:
    """The first `count` tasks of `of`."""
    return evaluation(*(float(task < count) for task in range(of)))


def judged(*evaluations: Evaluation) -> BestVersion:
    kept = BestVersion.first(0, evaluations[0])
    for version, found in enumerate(evaluations[1:], 1):
        kept = kept.judged(version, found)
    return kept


def test_the_best_is_kept_and_at_a_tie_the_earlier() -> None:
    kept = judged(solved(5), solved(9), solved(12), solved(12), solved(11))
    assert (kept.version, kept.success, kept.evaluations) == (2, 0.6, 5)


def test_patience_runs_from_the_last_noticeable_rise() -> None:
    assert judged(solved(5)).without_rise == 0
    assert judged(solved(5), solved(9)).without_rise == 0
    assert judged(solved(5), solved(9), solved(9), solved(8)).without_rise == 2


def test_one_task_more_is_the_best_but_no_rise() -> None:
    for of in range(2, 60):
        kept = judged(solved(1, of), solved(2, of))
        assert (kept.version, kept.without_rise) == (1, 1)
        assert judged(solved(0, of), solved(2, of)).without_rise == 0, "two tasks more are, from the standard error on"


def test_slow_gains_add_up_until_they_are_noticed() -> None:
    kept = judged(solved(5), solved(6), solved(6), solved(7))
    assert kept.without_rise == 0
    assert kept.reference == solved(7).rewards


def test_as_many_tasks_won_as_lost_is_no_rise() -> None:
    assert not rises({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0})
    assert not rises({"a": 1.0}, {"b": 2.0}), "no task in common"
    assert rises({"a": 0.0}, {"a": 0.1}), "one task alone has no spread"


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=30))
def test_a_rise_is_a_mean_above_its_standard_error_in_any_order(pairs: list[tuple[int, int]]) -> None:
    before = {str(n): float(a) for n, (a, _) in enumerate(pairs)}
    after = {str(n): float(b) for n, (_, b) in enumerate(pairs)}
    total = sum(b - a for a, b in pairs)
    squares = sum((b - a) ** 2 for a, b in pairs)
    count = len(pairs)
    # mean > error, squared and multiplied out in whole numbers: total² (n - 1) > n Σd² - total², where total > 0.
    expected = total > 0 and total**2 * (count - 1) > count * squares - total**2
    assert rises(before, after) == expected
    assert rises(dict(reversed(before.items())), after) == expected


def test_it_survives_a_checkpoint() -> None:
    kept = judged(solved(5), solved(9), solved(8))
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(kept)), BestVersion) == kept
