from __future__ import annotations

import io

import pytest

from orchestrator.events import Pace, Printer, format_duration
from orchestrator.fakes.world import FakeClock


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (-3, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (187, "3:07"),
        (3599.6, "1:00:00"),
        (90_061, "25:01:01"),
    ],
)
def test_format_duration_rounds_to_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def make_pace(num_parallel: int = 1) -> Pace:
    return Pace(num_expected=10, num_parallel=num_parallel, guess_boot_s=60.0, fixed_s=30.0)


def test_pace_before_the_first_boot_takes_the_guess() -> None:
    assert make_pace().left_s(0.0, 0, 0.0) == 10 * 60 + 30


def test_pace_after_boots_takes_their_mean() -> None:
    pace = make_pace()
    pace.durations_s += [100.0, 200.0]

    assert pace.left_s(0.0, 0, 0.0) == 8 * 150 + 30


def test_pace_counts_what_running_boots_have_done_and_shares_over_nodes() -> None:
    assert make_pace(num_parallel=2).left_s(0.0, 2, 20.0) == (10 * 60 - 20) / 2 + 30


def test_pace_with_more_boots_than_expected_counts_those_that_run() -> None:
    pace = make_pace()
    pace.durations_s += [60.0] * 10

    assert pace.left_s(0.0, 1, 10.0) == 50 + 30


def test_pace_never_goes_below_what_comes_after_the_boots() -> None:
    pace = make_pace()
    pace.durations_s += [60.0] * 10

    assert pace.left_s(0.0, 1, 500.0) == 30


def test_printer_says_the_time_passed_and_the_time_left() -> None:
    clock, sink = FakeClock(100.0), io.StringIO()
    printer = Printer(sink=sink, clock=clock, started_s=100.0)

    printer.say("begun")
    clock.sleep(65)
    printer.left_s = lambda: 7200.0
    printer.say("under way")
    printer.lines(["a", "b"])

    assert sink.getvalue().splitlines() == [
        "[0:00] begun",
        "[1:05 | ~2:00:00 left] under way",
        "a",
        "b",
    ]


def test_pace_after_the_race_counts_down_what_comes_after_it() -> None:
    pace = make_pace()
    pace.race_ended_s = 1000.0

    assert pace.left_s(1010.0, 0, 0.0) == 20
    assert pace.left_s(1100.0, 0, 0.0) == 0


def test_event_is_told_without_the_secrets_in_it() -> None:
    sink, clock = io.StringIO(), FakeClock()
    printer = Printer(sink=sink, clock=clock, started_s=clock.monotonic())
    printer.say("not promoted: http://bob:PlantedSecret@mlflow:5000/#/runs answers HTTP 401")
    assert sink.getvalue() == ("[0:00] not promoted: http://mlflow:5000/#/runs answers HTTP 401\n")


def test_printer_shows_what_others_wrote_as_one_line() -> None:
    sink = io.StringIO()
    printer = Printer(sink=sink, clock=FakeClock(), started_s=0.0)

    printer.say("trial a\nb\x1b[2J is gone")
    printer.lines(["MLflow: x\r\ny", "\N{MICRO SIGN}s"])

    first, second, third = sink.getvalue().splitlines()
    assert first.endswith(r"trial a\nb\x1b[2J is gone")
    assert (second, third) == (r"MLflow: x\r\ny", "\N{MICRO SIGN}s")
