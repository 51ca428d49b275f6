from __future__ import annotations

import pytest

from orchestrator.adapters.clock import SystemClock
from orchestrator.fakes.world import FakeClock
from orchestrator.ports import Clock


@pytest.fixture(params=[FakeClock, SystemClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


class TestClockContract:
    def test_monotonic_never_goes_back(self, clock: Clock) -> None:
        readings = [clock.monotonic() for _ in range(100)]

        assert readings == sorted(readings)

    def test_sleep_passes_at_least_the_time(self, clock: Clock) -> None:
        before = clock.monotonic()
        clock.sleep(0.01)

        assert clock.monotonic() - before >= 0.01

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    def test_sleep_of_nothing_or_less_returns(self, clock: Clock, seconds: float) -> None:
        before = clock.monotonic()
        clock.sleep(seconds)

        assert clock.monotonic() >= before


def test_fake_clock_sleeps_hours_in_no_time() -> None:
    clock = FakeClock(start_s=10.0)
    clock.sleep(7200.0)

    assert clock.monotonic() == 7210.0
