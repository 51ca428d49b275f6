from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fakes.simulate.verification import (
    Floats,
    Model,
    Rule,
    enumerate_step,
    one_hot,
    residual,
    sample,
    verify,
)

RULES: tuple[Rule, ...] = ("standard", "block")
TOY_TARGET = np.array([1 / 3, 2 / 3])
TOY_DRAFT = np.array([2 / 3, 1 / 3])
PUBLISHED = {"standard": Fraction(10, 9), "block": Fraction(11, 9)}


def always(distribution: Floats) -> Model:
    return lambda _: distribution


def random_model(seed: int, num_tokens: int, *, sparse: bool = False) -> Model:
    """A model whose distributions depend on all tokens before."""

    def following(prefix: tuple[int, ...]) -> Floats:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        chances = rng.dirichlet(np.full(num_tokens, 0.6))
        if sparse:
            chances[rng.integers(num_tokens)] = 0.0
        return np.asarray(chances / chances.sum())

    return following


def greedy(model: Model) -> Model:
    return lambda prefix: one_hot(model(prefix))


def target_text_chance(target: Model, text: tuple[int, ...]) -> float:
    return float(np.prod([target(text[:i])[token] for i, token in enumerate(text)]))


@pytest.mark.parametrize("rule", RULES)
def test_enumeration_of_the_published_toy_gives_the_published_lengths(rule: Rule) -> None:
    outcomes = enumerate_step(always(TOY_TARGET), always(TOY_DRAFT), depth=2, rule=rule)

    assert outcomes.mean_length == pytest.approx(float(PUBLISHED[rule]), abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_sampling_of_the_published_toy_agrees_with_its_enumeration(rule: Rule) -> None:
    num = 40_000
    p, q = np.tile(TOY_TARGET, (num, 2, 1)), np.tile(TOY_DRAFT, (num, 2, 1))

    _, lengths = sample(p, q, rule, np.random.default_rng(7))

    law = enumerate_step(always(TOY_TARGET), always(TOY_DRAFT), depth=2, rule=rule).lengths
    seen = np.bincount(lengths, minlength=3) / num
    assert np.abs(seen - law) == pytest.approx(0.0, abs=4 * 0.5 / num**0.5)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    num_tokens=st.integers(2, 3),
    depth=st.integers(1, 3),
    rule=st.sampled_from(RULES),
    is_greedy=st.booleans(),
    sparse=st.booleans(),
)
def test_step_emits_texts_as_often_as_the_target_alone(
    seed: int, num_tokens: int, depth: int, rule: Rule, is_greedy: bool, sparse: bool
) -> None:
    target = random_model(seed, num_tokens, sparse=sparse)
    draft = random_model(seed + 1, num_tokens)
    draft = greedy(draft) if is_greedy else draft

    outcomes = enumerate_step(target, draft, depth=depth, rule=rule)

    assert outcomes.lengths.sum() == pytest.approx(1.0)
    assert outcomes.lengths.min() >= 0
    for text in product(range(num_tokens), repeat=depth + 1):
        expected = target_text_chance(target, text)
        assert outcomes.texts.get(text, 0.0) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), num_tokens=st.integers(2, 3), depth=st.integers(1, 3))
def test_block_accepts_on_average_at_least_as_much_as_token_wise(
    seed: int, num_tokens: int, depth: int
) -> None:
    target, draft = random_model(seed, num_tokens), random_model(seed + 1, num_tokens)

    standard = enumerate_step(target, draft, depth=depth, rule="standard")
    block = enumerate_step(target, draft, depth=depth, rule="block")

    assert block.mean_length >= standard.mean_length - 1e-12
    if depth == 1:
        assert block.lengths == pytest.approx(standard.lengths)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), num_tokens=st.integers(2, 3), depth=st.integers(1, 3))
def test_greedy_drafts_are_accepted_alike_under_both_rules(
    seed: int, num_tokens: int, depth: int
) -> None:
    target, draft = random_model(seed, num_tokens), greedy(random_model(seed + 1, num_tokens))
    path: tuple[int, ...] = ()
    chances = []
    for _ in range(depth):
        first = int(draft(path).argmax())
        chances.append(float(target(path)[first]))
        path = (*path, first)

    laws = [enumerate_step(target, draft, depth=depth, rule=rule).lengths for rule in RULES]

    assert laws[0] == pytest.approx(laws[1], abs=1e-12)
    at_least = laws[0][::-1].cumsum()[::-1][1:]
    assert at_least == pytest.approx(np.cumprod(chances), abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_draft_equal_to_the_target_is_accepted_whole(rule: Rule) -> None:
    model = random_model(3, 3)

    outcomes = enumerate_step(model, model, depth=3, rule=rule)

    assert outcomes.lengths == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_draft_without_overlap_is_rejected_whole(rule: Rule) -> None:
    target, draft = always(np.array([1.0, 0.0])), always(np.array([0.0, 1.0]))

    outcomes = enumerate_step(target, draft, depth=2, rule=rule)

    assert outcomes.lengths == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_sampled_lengths_follow_the_law_of_their_drafts(rule: Rule) -> None:
    rng = np.random.default_rng(11)
    p, q = rng.dirichlet(np.ones(5), (1, 4)), rng.dirichlet(np.ones(5), (1, 4))
    num = 40_000
    many = np.tile(p, (num, 1, 1)), np.tile(q, (num, 1, 1))

    tokens, lengths = sample(*many, rule, rng)

    law = verify(*many, tokens, rule).lengths.mean(axis=0)
    seen = np.bincount(lengths, minlength=5) / num
    assert np.abs(seen - law) == pytest.approx(0.0, abs=4 * 0.5 / num**0.5)


def test_residual_without_a_rest_is_the_target() -> None:
    target = np.array([0.25, 0.75])

    assert residual(target, target, 1.0) is target
