"""What may be removed of what studies left: never what runs, and nothing that a resume needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.leftovers import (
    Circumstances,
    Condition,
    Kind,
    Leftover,
    judge,
    worst,
)

ID = "demo-1a2b3c4d-20261129-101500"
OTHER = "demo-1a2b3c4d-20261130-101500"
ALONE = Circumstances(conditions={}, is_claimed=False, is_whole=True)


def thing(kind: Kind = Kind.TUNE, study_id: str | None = ID, name: str = "x") -> Leftover:
    return Leftover(kind=kind, name=name, node="n1", study_id=study_id)


def kept(item: Leftover, known: Circumstances) -> str | None:
    (judged,) = judge([item], known)
    return judged.is_kept_because


def with_study(condition: Condition, **changes: object) -> Circumstances:
    known = replace(ALONE, conditions={ID: condition})
    return replace(known, **changes)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("kind", list(Kind))
def test_thing_of_a_study_that_is_over_may_be_removed(kind: Kind) -> None:
    assert kept(thing(kind), with_study(Condition.ENDED)) is None


@pytest.mark.parametrize("kind", [Kind.BOOT, Kind.AUDIT, Kind.TUNE, Kind.STATE])
@pytest.mark.parametrize("asked", [frozenset(), frozenset({ID})])
def test_thing_of_a_study_that_runs_is_left_alone_even_if_named(
    kind: Kind, asked: frozenset[str]
) -> None:
    assert kept(thing(kind), with_study(Condition.RUNNING, asked=asked)) == "its study runs"


@pytest.mark.parametrize("condition", [Condition.UNFINISHED, Condition.UNREADABLE])
@pytest.mark.parametrize("kind", [Kind.TUNE, Kind.STATE])
def test_what_a_resume_needs_goes_only_when_the_study_is_named(
    kind: Kind, condition: Condition
) -> None:
    why = kept(thing(kind), with_study(condition))

    assert why is not None
    assert f"--study {ID} removes it" in why
    assert kept(thing(kind), with_study(condition, asked=frozenset({ID}))) is None


def test_dead_boot_of_a_study_that_can_be_resumed_may_be_removed() -> None:
    assert kept(thing(Kind.BOOT), with_study(Condition.UNFINISHED)) is None


def test_dead_boot_of_another_study_than_the_one_that_runs_may_be_removed() -> None:
    known = replace(ALONE, conditions={OTHER: Condition.RUNNING}, is_claimed=True)

    assert kept(thing(Kind.BOOT), known) is None


@pytest.mark.parametrize("kind", [Kind.APPLICATION, Kind.LEASE, Kind.AUDIT, Kind.TUNE, Kind.BOOT])
def test_claim_by_a_study_without_a_state_keeps_what_may_be_its_own(kind: Kind) -> None:
    assert kept(thing(kind), replace(ALONE, is_claimed=True)) == (
        "a study or promotion is under way"
    )


@pytest.mark.parametrize("kind", [Kind.AUDIT, Kind.TUNE])
def test_folder_without_a_state_is_removed_only_when_all_nodes_were_asked(kind: Kind) -> None:
    assert kept(thing(kind), ALONE) is None
    assert "not known" in str(kept(thing(kind), replace(ALONE, is_whole=False)))


def test_study_that_is_named_is_the_only_one_that_is_shown() -> None:
    found = [thing(study_id=OTHER), thing(), thing(Kind.APPLICATION, None)]

    assert judge(found, replace(ALONE, asked=frozenset({ID}))) == [thing()]


def test_what_may_be_removed_comes_first_and_processes_before_folders() -> None:
    known = with_study(Condition.ENDED, conditions={ID: Condition.ENDED, OTHER: Condition.RUNNING})
    found = [thing(study_id=OTHER), thing(Kind.STATE), thing(Kind.BOOT), thing(Kind.TUNE)]

    judged = judge(found, known)

    assert [item.kind for item in judged] == [Kind.BOOT, Kind.TUNE, Kind.STATE, Kind.TUNE]
    assert judged[-1].study_id == OTHER


def test_condition_that_several_nodes_tell_is_the_one_that_keeps_most() -> None:
    assert worst({Condition.ENDED, Condition.RUNNING}) is Condition.RUNNING
    assert worst({Condition.ENDED, Condition.UNFINISHED}) is Condition.UNFINISHED


ids = st.sampled_from([ID, OTHER, "gone-1"])
things = st.builds(thing, st.sampled_from(Kind), st.one_of(st.none(), ids), st.text(max_size=3))
circumstances = st.builds(
    Circumstances,
    conditions=st.dictionaries(ids, st.sampled_from(Condition)),
    is_claimed=st.booleans(),
    is_whole=st.booleans(),
    asked=st.frozensets(ids),
)


@given(st.lists(things), circumstances)
def test_nothing_that_runs_and_nothing_that_a_resume_needs_is_ever_removed(
    found: list[Leftover], known: Circumstances
) -> None:
    for item in judge(found, known):
        if item.is_kept_because is not None:
            continue
        condition = known.conditions.get(item.study_id or "")
        assert condition is not Condition.RUNNING
        if item.kind in (Kind.STATE, Kind.TUNE) and item.study_id not in known.asked:
            assert condition in (None, Condition.ENDED)
        if item.kind in (Kind.APPLICATION, Kind.LEASE):
            assert not known.is_claimed
        if known.asked:
            assert item.study_id in known.asked


@pytest.mark.parametrize("kind", [Kind.TUNE, Kind.STATE])
def test_study_that_is_named_and_whose_state_nobody_knows_is_left_to_who_is_at_it(
    kind: Kind,
) -> None:
    """Its disk may be full, or its driver on another node: its claim is all that shows it."""
    named = replace(ALONE, asked=frozenset({ID}))

    assert kept(thing(kind), named) is None
    assert kept(thing(kind), replace(named, is_claimed=True)) is not None
    assert kept(thing(kind), replace(named, is_whole=False)) is not None
    unreadable = with_study(Condition.UNREADABLE, asked=frozenset({ID}), is_claimed=True)
    assert kept(thing(kind), unreadable) is not None
