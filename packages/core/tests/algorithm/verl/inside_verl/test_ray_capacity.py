"""What VERL waits for, in words."""

from leyden.core.algorithm.verl.inside_verl.monitors import missing_capacity


def test_nothing_is_waited_for() -> None:
    assert missing_capacity([], {"CPU": 1.0}, {"CPU": 8.0}) is None


def test_bundles_are_counted_beside_what_is_free() -> None:
    groups = [[{"CPU": 3.0, "GPU": 1.0}] * 2, [{"GPU": 1.0, "CPU": 3.0}], [{"CPU": 1.0}]]
    assert missing_capacity(groups, {"GPU": 1.0}, {"CPU": 8.0, "GPU": 4.0}) == (
        "VERL waits for free resources in the Ray cluster: it requests 1 × (CPU 1), 3 × (CPU 3, GPU 1), with each "
        "group on one node; free: CPU 0 of 8, GPU 1 of 4"
    )
