"""The targets of ``make bench-fuzz``, small: hypothesis draws the chance and shrinks it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.fuzz.__main__ import main, targets
from infra.fuzz.target import Target, fuzz, input_of


@pytest.fixture(scope="module", params=targets().values(), ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with closing(request.param):
        yield request.param


# A target may let hypothesis draw its input from the chance that it is given.
@settings(max_examples=100, suppress_health_check=[HealthCheck.nested_given])
@given(source=st.randoms(use_true_random=False))
def test_target_of_any_input_is_right(target: Target, source: random.Random) -> None:
    assert target.check(target.make(source)) is None


def test_target_of_the_first_inputs_of_the_benchmark_is_right(target: Target) -> None:
    tally = fuzz(target, 2_000 // target.cost, seed=0)

    assert (tally.inputs, tally.crashes, tally.wrong, tally.kept) == (
        2_000 // target.cost,
        0,
        0,
        [],
    )


def test_fuzz_counts_crashes_and_wrong_answers_and_names_their_inputs() -> None:
    def check(number: int) -> str | None:
        if number == 3:
            raise KeyError("three")
        return "four" if number == 4 else None

    target = Target(name="dice", make=lambda source: source.randint(1, 6), check=check)
    tally = fuzz(target, 200, seed=7)
    drawn = [input_of(target, 7, number) for number in range(200)]

    assert (tally.crashes, tally.wrong) == (drawn.count(3), drawn.count(4))
    first = min(drawn.index(3), drawn.index(4))
    assert tally.kept[0].startswith(f"input {first} of seed 7: ")
    assert len(tally.kept) == 5


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_fuzz_closes_its_target_whatever_ends_it(fault: type[BaseException]) -> None:
    closed: list[bool] = []

    def check(_: int) -> str | None:
        raise fault

    def close() -> None:
        closed.append(True)

    target = Target(name="dice", make=lambda source: source.random(), check=check, close=close)
    with suppress(KeyboardInterrupt):
        fuzz(target, 2, seed=7)

    assert closed == [True]


def test_main_prints_a_row_a_target_and_knows_its_targets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--inputs", "3", "sse bytes"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "target",
        "sse bytes",
    ]
    with pytest.raises(SystemExit):
        main(["sse"])
