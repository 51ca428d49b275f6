"""What is read from a completion's token ids and probabilities, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import MeasurementError
from orchestrator.load.token_answers import WHOLE, parse_sample, parse_scores

SENT = (4, 7, 2, 9)
Change = Callable[[dict[str, Any]], object]


def entry(*items: tuple[int, int, float]) -> dict[str, Any]:
    """Return one position's probabilities of (id, rank, probability)."""
    return {
        str(token): {"logprob": math.log(p) if p else -9999.0, "rank": rank, "decoded_token": "x"}
        for token, rank, p in items
    }


def scored() -> dict[str, Any]:
    """Return the answer to SENT with the two likeliest tokens of each position."""
    rows = [
        None,
        entry((7, 1, 0.6), (3, 2, 0.3)),
        entry((2, 5, 0.05), (1, 1, 0.5), (8, 2, 0.4)),
        entry((9, 2, 0.25), (0, 1, 0.7)),
    ]
    choice = {"prompt_logprobs": rows, "prompt_token_ids": list(SENT), "token_ids": [1]}
    return {"choices": [choice]}


def parse(body: dict[str, Any], num_top: int = 2, num_output: int = 3) -> Any:
    return parse_scores(body, sent=SENT, num_output=num_output, num_top=num_top)


def test_scores_are_of_the_last_tokens_in_the_order_of_ranks() -> None:
    scores = parse(scored(), num_output=2)

    assert scores.top.ids.tolist() == [[1, 8], [0, 9]]
    assert np.exp(scores.top.logprobs) == pytest.approx(np.array([[0.5, 0.4], [0.7, 0.25]]))
    assert np.exp(scores.logprobs) == pytest.approx([0.05, 0.25])
    assert scores.ranks.tolist() == [5, 2]
    assert not scores.is_whole


def test_scores_without_the_server_s_own_ids_are_taken_by_their_keys() -> None:
    body = scored()
    del body["choices"][0]["prompt_token_ids"]

    assert parse(body).ranks.tolist() == [1, 5, 2]


def test_clamped_minus_infinity_is_probability_zero() -> None:
    body = scored()
    body["choices"][0]["prompt_logprobs"][2] = entry((2, 9, 0.0), (1, 1, 0.5), (8, 2, 0.4))

    assert parse(body).logprobs[1] == -math.inf


def test_whole_vocabulary_is_taken_as_wide_as_it_is() -> None:
    rows = [None, *(entry((t, 1, 0.7), (50, 2, 0.2), (60, 3, 0.1)) for t in SENT[1:])]
    body = {"choices": [{"prompt_logprobs": rows}]}

    scores = parse(body, num_top=WHOLE)

    assert scores.is_whole
    assert scores.top.ids.shape == (3, 3)


def rows_of(body: dict[str, Any]) -> list[Any]:
    rows: list[Any] = body["choices"][0]["prompt_logprobs"]
    return rows


CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "none": (lambda b: b["choices"][0].update(prompt_logprobs=None), "no prompt_logprobs"),
    "no_choice": (lambda b: b.update(choices=[]), "no completion"),
    "two_choices": (lambda b: b.update(choices=b["choices"] * 2), "no completion"),
    "other_ids": (
        lambda b: b["choices"][0].update(prompt_token_ids=[4, 7, 2, 8]),
        "of other token ids than were sent",
    ),
    "ids_of_text": (lambda b: b["choices"][0].update(prompt_token_ids="4 7"), "no prompt_token"),
    "too_few": (lambda b: rows_of(b).pop(), "4 tokens were sent and 3"),
    "first_is_not_null": (
        lambda b: rows_of(b).__setitem__(0, entry((4, 1, 0.5), (5, 2, 0.1))),
        "nothing is before it",
    ),
    "null_inside": (lambda b: rows_of(b).__setitem__(2, None), "token 2 .* has no probability"),
    "own_token_missing": (lambda b: rows_of(b)[2].pop("2"), "is of other tokens"),
    "fewer_ranks": (lambda b: rows_of(b)[2].pop("8"), "ranks 1 to 2 were asked for"),
    "rank_twice": (lambda b: rows_of(b)[2]["8"].update(rank=1), "ranks 1 to 2 were asked for"),
    "ranks_swapped": (
        lambda b: (rows_of(b)[2]["8"].update(rank=1), rows_of(b)[2]["1"].update(rank=2)),
        "later rank is more likely",
    ),
    "unlikely_rank_of_a_likely_token": (
        lambda b: rows_of(b)[2]["2"].update(logprob=math.log(0.45)),
        "later rank is more likely",
    ),
    "nan": (lambda b: rows_of(b)[1]["3"].update(logprob=math.nan), "is nan"),
    "above_one": (lambda b: rows_of(b)[1]["3"].update(logprob=0.5), "is 0.5"),
    "no_number": (lambda b: rows_of(b)[1]["3"].update(logprob=None), "cannot be read"),
    "no_rank": (lambda b: rows_of(b)[1]["3"].pop("rank"), "cannot be read"),
    "no_id": (lambda b: rows_of(b)[1].update(x={"logprob": -1.0, "rank": 9}), "cannot be read"),
    "sum_above_one": (
        lambda b: rows_of(b)[1].update(entry((7, 1, 0.9), (3, 2, 0.3))),
        "sum to 1.2000",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_scores_that_contradict_themselves_are_refused(name: str) -> None:
    change, message = CONTRADICTIONS[name]
    body = scored()
    change(body)

    with pytest.raises(MeasurementError, match=message):
        parse(body)


def test_whole_vocabulary_that_misses_some_is_refused() -> None:
    rows = [None, *(entry((t, 1, 0.7), (50, 2, 0.2)) for t in SENT[1:])]

    with pytest.raises(MeasurementError, match=r"sum to 0\.9000"):
        parse({"choices": [{"prompt_logprobs": rows}]}, num_top=WHOLE)


def sampled(**changes: Any) -> dict[str, Any]:
    choice = {
        "prompt_token_ids": [1, 2],
        "token_ids": [5, 6],
        "logprobs": {
            "top_logprobs": [
                {"token_id:5": -3.0, "token_id:8": -0.1, "token_id:9": -2.9},
                {"token_id:6": -0.5, "token_id:7": -1.5},
            ]
        },
    }
    return {
        "choices": [choice | changes],
        "usage": {"completion_tokens": 2},
        "system_fingerprint": "vllm-0.32.0-abc",
    }


def test_sample_has_its_ids_and_what_was_likely_when_it_was_sampled() -> None:
    found = parse_sample(sampled(), num_logprobs=2)

    assert (found.prompt_ids, found.output_ids) == ((1, 2), (5, 6))
    assert found.build == "vllm-0.32.0-abc"
    assert found.decoded is not None
    assert found.decoded.ids.tolist() == [[8, 9], [6, 7]]
    assert found.decoded.logprobs.tolist() == [[-0.1, -2.9], [-0.5, -1.5]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": None}, "no token_ids"),
        ({"token_ids": [5, "6"]}, "no token_ids"),
        ({"token_ids": [5, True]}, "no token_ids"),
        ({"prompt_token_ids": None}, "no prompt_token_ids"),
        ({"token_ids": [5]}, "1 token ids and counts 2"),
        ({"logprobs": None}, "no logprobs"),
        ({"logprobs": {"top_logprobs": [{}]}}, "no logprobs"),
        ({"logprobs": {"top_logprobs": [{"a": -1.0}, {"b": -1.0}]}}, "cannot be read"),
        ({"logprobs": {"top_logprobs": [None, {"token_id:6": -1.0}]}}, "cannot be read"),
    ],
)
def test_sample_that_lacks_something_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        parse_sample(sampled(**changes), num_logprobs=2)


@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=12, unique=True),
    token=st.integers(0, 11),
    num_top=st.integers(1, 12),
)
def test_scores_of_any_distribution_give_back_probability_and_rank(
    weights: list[float], token: int, num_top: int
) -> None:
    token, num_top = token % len(weights), min(num_top, len(weights))
    probabilities = np.array(weights) / sum(weights)
    order = np.argsort(-probabilities)
    ranks = {int(t): r for r, t in enumerate(order, start=1)}
    named = {token, *(int(t) for t in order[:num_top])}
    row = entry(*((t, ranks[t], float(probabilities[t])) for t in named))

    scores = parse_scores(
        {"choices": [{"prompt_logprobs": [None, row]}]},
        sent=(0, token), num_output=1, num_top=num_top,
    )  # fmt: skip

    assert np.exp(scores.logprobs[0]) == pytest.approx(probabilities[token])
    assert scores.ranks.tolist() == [ranks[token]]
    assert scores.top.ids.tolist() == [order[:num_top].tolist()]
