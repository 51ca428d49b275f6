from __future__ import annotations

import numpy as np
import pytest

from orchestrator.load.sanity import garbage_kind
from serve_apps.engine.fake import scores
from serve_apps.engine.fake.chain import DISPLACED_RANK, VOCABULARY, Chain
from serve_apps.engine.fake.words import WORDS, decode, encode, word_of

CHAIN = Chain()


def test_chain_is_the_same_target_in_every_boot_and_another_with_another_seed() -> None:
    first, again, other = (
        chain.logprobs(3, 5) for chain in (CHAIN, Chain(), Chain(seed=1))
    )  # fmt: skip

    assert (first == again).all()
    assert not np.allclose(first, other)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_stated_probabilities(temperature: float) -> None:
    probabilities = np.exp(CHAIN.logprobs(3, 5, temperature))
    chances = (np.arange(20_000) + 0.5) / 20_000

    drawn = [CHAIN.draw(3, 5, temperature=temperature, chance=chance) for chance in chances]

    shares = np.bincount(drawn, minlength=VOCABULARY) / len(drawn)
    assert probabilities.sum() == pytest.approx(1.0)
    assert shares == pytest.approx(probabilities, abs=1e-4)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_draw_stays_among_the_likeliest_it_is_limited_to(chance: float) -> None:
    ranked = np.argsort(-CHAIN.logprobs(3, 5)).tolist()

    assert CHAIN.draw(3, 5, temperature=0.0, chance=chance) == ranked[0]
    assert CHAIN.draw(3, 5, temperature=1.0, chance=chance, top_k=4) in ranked[:4]
    assert CHAIN.displaced(3, 5) == ranked[DISPLACED_RANK - 1]


def test_every_token_before_and_every_place_has_a_distribution_of_its_own() -> None:
    likeliest = {CHAIN.draw(previous, 9, temperature=0, chance=0.5) for previous in range(64)}
    places = {CHAIN.draw(9, place, temperature=0, chance=0.5) for place in range(64)}

    assert min(len(likeliest), len(places)) > 16


def test_likeliest_text_is_no_loop() -> None:
    tokens = [0]
    for place in range(1, 5_000):
        tokens.append(CHAIN.draw(tokens[-1], place, temperature=0.0, chance=0.5))

    assert garbage_kind(decode(tokens)) is None


def test_text_of_tokens_has_those_tokens() -> None:
    every = tuple(range(VOCABULARY))

    assert len(set(WORDS)) == len(WORDS) == VOCABULARY
    assert encode(decode(every)) == every
    assert all(0 <= token < VOCABULARY for token in encode("def f(x): return x"))
    assert len(encode("")) == 1


def test_prompt_logprobs_name_the_prompt_s_own_token_and_the_likeliest() -> None:
    stated = lambda previous, place: scores.as_stated(CHAIN.logprobs(previous, place))  # noqa: E731

    first, second = scores.prompt_logprobs([3, 40], 2, stated=stated, name=word_of)
    whole = scores.prompt_logprobs([3, 40], -1, stated=stated, name=word_of)[1]

    assert first is None
    assert second is not None
    assert whole is not None
    assert len(whole) == VOCABULARY
    assert second["40"] == whole["40"]
    assert second["40"]["decoded_token"] == " " + WORDS[40]
    assert {1, 2} <= {item["rank"] for item in second.values()}
    assert second["40"]["logprob"] == pytest.approx(CHAIN.logprobs(3, 1)[40])


def test_stated_probabilities_are_finite() -> None:
    assert scores.as_stated(np.array([-np.inf, 0.0])).tolist() == [scores.CLAMPED, 0.0]
