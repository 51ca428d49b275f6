"""Numbers of two engines, two drivers or two settings never meet in an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from core_samples import BASELINE, CELL, make_arm, make_block, make_boot
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.comparable import (
    ACROSS,
    OWN,
    SHARED,
    comparable_boots,
    odd_boots,
    odd_sentences,
)
from orchestrator.core.estimate import cell_estimates
from orchestrator.core.types import Arm, Boot, BootStatus

ARM, OTHER = make_arm(7), make_arm(5)
ELSEWHERE = replace(ARM, engine_build="0.28.0")
SECTIONS = dict.fromkeys((*SHARED, *OWN), "a")


def boot(
    replicate: int,
    *,
    arm: Arm = ARM,
    change: Mapping[str, str] | None = None,
    invalid: str | None = None,
    score: float = 0.03,
) -> Boot:
    """Return a boot whose fingerprint differs from the usual one in some sections."""
    blocks = [make_block(arm, seconds_per_token=score, invalid_reason=invalid)]
    made = make_boot(arm, blocks, replicate=replicate)
    return replace(made, sections={**SECTIONS, **(change or {})})


def test_odd_boots_of_one_kind_are_none() -> None:
    boots = [boot(0), boot(1), boot(0, arm=OTHER), boot(0, arm=BASELINE)]

    assert odd_boots(boots) == {}
    assert comparable_boots(boots) == tuple(boots)
    assert odd_sentences(boots) == ()
    assert odd_boots([]) == {}


@pytest.mark.parametrize("section", SHARED)
def test_odd_boots_differ_in_what_all_boots_must_share(section: str) -> None:
    """A02: two versions of the engine, two drivers, two workloads are not one experiment."""
    odd = boot(1, change={section: "b"})
    boots = [boot(0), odd, boot(0, arm=OTHER)]

    assert odd_boots(boots) == {odd.trial_id: (section,)}
    assert odd not in comparable_boots(boots)


@pytest.mark.parametrize("section", OWN)
def test_odd_boots_differ_in_what_the_boots_of_one_arm_must_share(section: str) -> None:
    odd = boot(2, change={section: "b"})
    boots = [boot(0), boot(1), odd, boot(0, arm=OTHER, change={section: "c"})]

    assert odd_boots(boots) == {odd.trial_id: (section,)}


def test_odd_boots_another_build_is_no_odd_one() -> None:
    """A02: a build that a study compares has an engine of its own, and its own majority."""
    there = {"engine": "b", "environment": "b", "arguments": "b", "resolved_config": "b"}
    boots = [boot(0), boot(1), *(boot(n, arm=ELSEWHERE, change=there) for n in range(3))]
    odd = boot(3, arm=ELSEWHERE, change={**there, "engine": "c"})

    assert odd_boots(boots) == {}
    assert odd_boots([*boots, odd]) == {odd.trial_id: ("engine",)}
    (sentence,) = odd_sentences([*boots, odd])
    assert sentence.startswith(f"0.28.0/{ARM.label}, boot 3 ")


@pytest.mark.parametrize("section", ACROSS)
def test_odd_boots_of_two_builds_share_what_is_no_engine_s(section: str) -> None:
    boots = [boot(0), boot(1), boot(0, arm=ELSEWHERE, change={section: "b"})]

    assert odd_boots(boots) == {boots[2].trial_id: (section,)}
    assert odd_boots(boots[2:]) == {}, "within its build it is like the others"


def test_odd_boots_name_every_section() -> None:
    odd = boot(2, change={"engine": "b", "platform": "b"})
    boots = [boot(0), boot(1), odd]

    assert odd_boots(boots) == {odd.trial_id: ("engine", "platform")}
    (sentence,) = odd_sentences(boots)
    assert sentence.startswith(f"{ARM.label}, boot 2 on node node, is left out: ")
    assert "engine" in sentence
    assert "platform" in sentence


def test_odd_boots_other_sections_are_not_looked_at() -> None:
    """F18: a boot on another node of the kind is a block of the comparison, not another kind."""
    assert odd_boots([boot(0), boot(1, change={"node": "n2"})]) == {}


def test_odd_boots_more_frequent_kind_wins_whatever_the_order() -> None:
    few, many = boot(0, change={"engine": "b"}), [boot(1), boot(2)]

    assert odd_boots([few, *many]).keys() == {few.trial_id}
    assert odd_boots([*many, few]).keys() == {few.trial_id}


def test_odd_boots_of_two_kinds_as_frequent_keep_the_earlier() -> None:
    first, second = boot(0), boot(1, change={"engine": "b"})

    assert odd_boots([first, second]).keys() == {second.trial_id}
    assert odd_boots([second, first]).keys() == {first.trial_id}


def test_odd_boots_section_that_is_missing_differs_from_one_that_is_there() -> None:
    bare = boot(2)
    bare = replace(bare, sections={k: v for k, v in bare.sections.items() if k != "platform"})

    assert odd_boots([boot(0), boot(1), bare]) == {bare.trial_id: ("platform",)}


def test_odd_boots_without_a_fingerprint_are_not_judged() -> None:
    bare = replace(boot(0), sections={})

    assert odd_boots([bare, boot(1, change={"engine": "b"})]) == {}


@pytest.mark.parametrize("status", [BootStatus.FAILED, BootStatus.NOT_IN_FORCE])
def test_odd_boots_that_failed_never_outvote_one_that_has_numbers(status: BootStatus) -> None:
    failed = [
        replace(boot(n, change={"platform": "b"}), blocks=(), status=status) for n in range(3)
    ]
    void = boot(4, change={"platform": "c"}, invalid="other traffic")
    good = boot(3)

    assert odd_boots([*failed, void, good]) == {}


def test_odd_boots_boot_of_another_engine_has_no_vote_on_its_arm_s_settings() -> None:
    strange = [boot(n, change={"engine": "b", "arguments": "b"}) for n in (0, 1)]
    usual = [boot(2), boot(0, arm=OTHER), boot(1, arm=OTHER)]

    assert odd_boots([*strange, *usual]).keys() == {b.trial_id for b in strange}


def test_estimate_of_an_arm_leaves_the_odd_boot_s_numbers_out() -> None:
    odd = boot(2, change={"engine": "b"}, score=0.9)
    boots = [boot(0, score=0.03), boot(1, score=0.031)]

    (with_odd,) = cell_estimates(ARM, [*boots, odd], None)
    (without,) = cell_estimates(ARM, boots, None)

    assert with_odd == without
    assert with_odd.cell == CELL


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7))
def test_comparable_boots_are_of_one_kind_and_the_rest_is_named(kinds: list[str]) -> None:
    boots = [boot(n, change={"engine": kind}) for n, kind in enumerate(kinds)]

    kept = comparable_boots(boots)

    assert len({b.sections["engine"] for b in kept}) == 1
    assert len(kept) == max(kinds.count(kind) for kind in kinds)
    assert {b.trial_id for b in kept} | odd_boots(boots).keys() == {b.trial_id for b in boots}
    assert len(odd_sentences(boots)) == len(boots) - len(kept)
