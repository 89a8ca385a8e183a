from collections.abc import Collection, Iterator
from typing import Any

import pytest
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from leyden.core.runner.adapters.instrumentor_switch import InstrumentorSwitch


class Counted(BaseInstrumentor):
    """One in all, as every instrumentor; says how often it was turned on and off."""

    turned = 0

    def instrumentation_dependencies(self) -> Collection[str]:
        return []

    def _instrument(self, **kwargs: Any) -> None:
        type(self).turned += 1

    def _uninstrument(self, **kwargs: Any) -> None:
        type(self).turned -= 1


@pytest.fixture(autouse=True)
def one() -> Iterator[Counted]:
    yield Counted()
    if Counted().is_instrumented_by_opentelemetry:
        Counted().uninstrument()


def test_it_undoes_once_what_it_did_once() -> None:
    switch = InstrumentorSwitch(Counted)
    for _ in range(2):
        switch.on()
        assert Counted.turned == 1
    for _ in range(2):
        switch.off()
        assert Counted.turned == 0
    switch.on()
    assert Counted.turned == 1


def test_what_another_has_turned_on_stays_on(one: Counted) -> None:
    one.instrument()
    switch = InstrumentorSwitch(Counted)
    switch.on()
    switch.off()
    assert Counted.turned == 1
