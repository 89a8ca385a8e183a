"""The pins of the adapters' sets are those of what the packages declare, and written down."""

from adapter_versions import PAGE, ROOT, adapters, declared, page, pinned, sets


def test_every_adapter_is_tested_on_its_oldest_and_newest_frameworks() -> None:
    assert len(adapters()) == 4
    (newest,) = sets()["newest"]
    assert set(newest.adapters) == set(adapters()) - {"crewai"}
    assert pinned(newest.pins)["openai"].startswith("3.")
    assert pinned(ROOT / "constraints.txt")["openai"].startswith("2.")


def test_the_oldest_pins_are_the_floors_that_are_declared() -> None:
    for one in sets()["oldest"]:
        (adapter,) = one.adapters
        versions = pinned(one.pins)
        framework, floor = declared(adapter)[0].split(">=")
        parts = floor.split(".")
        assert versions[framework].split(".")[: len(parts)] == parts, one.name


def test_no_adapter_needs_torch() -> None:
    for group in sets().values():
        assert not any("torch" in pinned(one.pins) for one in group)


def test_the_versions_are_written_down() -> None:
    assert PAGE.read_text() == page(), "run make lock-versions"
