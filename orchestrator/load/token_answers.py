"""What a completion's JSON says of its tokens: their ids, and probabilities of given ids. Pure.

The form is vLLM's, the same from 0.28 to 0.33: ``return_token_ids`` adds ``prompt_token_ids`` and
``token_ids`` to a choice; ``prompt_logprobs: N`` adds for every position of the prompt the N most
likely tokens and the prompt's own, each with natural log probability and rank, and null for the
first position. The probabilities are the model's own, before temperature or any limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.errors import MeasurementError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

WHOLE = -1
"""``prompt_logprobs`` of the whole vocabulary."""

IMPOSSIBLE = -9000.0
"""Log probabilities below it stand for probability 0: vLLM writes -9999 for minus infinity, and a
float32 softmax of finite logits never comes near."""

ORDER_SLACK = 1e-4
"""By how much a probability may be above that of an earlier rank, relative, by rounding of the
softmax; and a log probability above 0."""

SUM_SLACK = 1e-3
"""By how much probabilities may miss a sum of 1, by rounding in float32 and in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The most likely tokens at each of some positions, in the order of their ranks."""

    ids: Integers
    """[num_tokens, num_top]"""
    logprobs: Floats
    """[num_tokens, num_top], natural log, falling along a row; -inf for probability 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer of a server, by token ids."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    decoded: Top | None
    """What the server held likely when it sampled; None where it was not asked. Rows are as wide
    as asked, the sampled token is not among them unless it is likely."""
    build: str | None
    """What the server says of its build, for example ``vllm-0.32.0-f26e0145``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Probabilities of an answer's tokens, each given all before it."""

    top: Top
    logprobs: Floats
    """[num_tokens], of the answer's own tokens, natural log; -inf for probability 0."""
    ranks: Integers
    """[num_tokens], from 1; above ``num_top`` for tokens that are not among the top."""
    is_whole: bool
    """The top ones are the whole vocabulary."""


def parse_sample(body: Mapping[str, Any], *, num_logprobs: int = 0) -> Sample:
    """Return the tokens of an answer that was asked for with ``return_token_ids``.

    Args:
        body: The completion.
        num_logprobs: ``logprobs`` of the request; 0 for none.

    Raises:
        MeasurementError: It is no completion, or has no token ids, or not the ones it counts.
    """
    choice = _choice(body)
    prompt = _ids(choice.get("prompt_token_ids"), "prompt_token_ids")
    output = _ids(choice.get("token_ids"), "token_ids")
    usage = body.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if counted is not None and counted != len(output):
        raise MeasurementError(f"an answer has {len(output)} token ids and counts {counted}")
    build = body.get("system_fingerprint")
    return Sample(
        prompt_ids=prompt,
        output_ids=output,
        decoded=_decoded(choice, len(output), num_logprobs) if num_logprobs else None,
        build=build if isinstance(build, str) else None,
    )


def parse_scores(
    body: Mapping[str, Any], *, sent: Sequence[int], num_output: int, num_top: int
) -> Scores:
    """Return the probabilities of the last tokens of a prompt that was sent as ids.

    Args:
        body: The completion.
        sent: The prompt: an answer after its own prompt.
        num_output: How many of the last ones are the answer, 1 or more.
        num_top: ``prompt_logprobs`` of the request; ``WHOLE`` for all.

    Raises:
        MeasurementError: There are no such probabilities, they are of other tokens, or they
            contradict themselves.
    """
    choice = _choice(body)
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list):
        raise MeasurementError("no prompt_logprobs in the answer: only vLLM is known to give them")
    said = choice.get("prompt_token_ids")
    if said is not None and _ids(said, "prompt_token_ids") != tuple(sent):
        raise MeasurementError("the probabilities are of other token ids than were sent")
    if len(rows) != len(sent):
        raise MeasurementError(f"{len(sent)} tokens were sent and {len(rows)} have probabilities")
    if rows[0] is not None:
        raise MeasurementError("the first token has a probability, although nothing is before it")
    start = len(sent) - num_output
    parsed = [_row(rows[at], sent[at], num_top, at=at) for at in range(start, len(sent))]
    widths = {len(row.ids) for row in parsed}
    if len(widths) > 1:
        raise MeasurementError(f"vocabularies of {min(widths)} and of {max(widths)} tokens")
    top = Top(
        ids=np.array([row.ids for row in parsed], dtype=np.int64),
        logprobs=_possible(np.array([row.logprobs for row in parsed], dtype=np.float64)),
    )
    scores = Scores(
        top=top,
        logprobs=_possible(np.array([row.own for row in parsed], dtype=np.float64)),
        ranks=np.array([row.rank for row in parsed], dtype=np.int64),
        is_whole=num_top == WHOLE,
    )
    _check_order(scores)
    _check_sums(scores)
    return scores


@dataclass(frozen=True, slots=True)
class _Row:
    ids: list[int]
    logprobs: list[float]
    own: float
    rank: int


def _row(entry: object, token: int, num_top: int, *, at: int) -> _Row:
    if not isinstance(entry, dict):
        raise MeasurementError(f"token {at} of the prompt has no probability")
    ranked = sorted(_item(name, value, at=at) for name, value in entry.items())
    own = next((item for item in ranked if item[1] == token), None)
    if own is None:
        raise MeasurementError(f"token {at} was {token}, and its probability is of other tokens")
    wanted = len(ranked) if num_top == WHOLE else num_top
    top = [item for item in ranked if item[0] <= wanted]
    if [rank for rank, _, _ in top] != list(range(1, wanted + 1)):
        shown = ", ".join(str(rank) for rank, _, _ in top[:8])
        raise MeasurementError(
            f"of token {at} the ranks 1 to {wanted} were asked for, and {shown or 'none'} came"
        )
    return _Row([token for _, token, _ in top], [value for *_, value in top], own[2], own[0])


def _item(name: object, value: object, *, at: int) -> tuple[int, int, float]:
    try:
        found = (int(value["rank"]), int(str(name)), float(value["logprob"]))  # type: ignore[index]  # TypeError is caught
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise MeasurementError(f"a probability of token {at} cannot be read: {error}") from error
    # NaN fails both comparisons.
    if not -math.inf <= found[2] <= ORDER_SLACK:
        raise MeasurementError(f"a log probability of token {at} is {found[2]:g}")
    return found


def _check_order(scores: Scores) -> None:
    ranked = np.exp(scores.top.logprobs)
    least = ranked[:, -1]
    beyond = scores.ranks > ranked.shape[1]
    rises = (ranked[:, 1:] > ranked[:, :-1] * (1 + ORDER_SLACK)).any()
    if rises or (beyond & (np.exp(scores.logprobs) > least * (1 + ORDER_SLACK))).any():
        raise MeasurementError("a token of a later rank is more likely than one of an earlier rank")


def _check_sums(scores: Scores) -> None:
    sums = np.exp(scores.top.logprobs).sum(axis=1)
    most, least = float(sums.max()), float(sums.min())
    if most > 1 + SUM_SLACK:
        raise MeasurementError(f"the top probabilities of a token sum to {most:.4f}, above 1")
    if scores.is_whole and least < 1 - SUM_SLACK:
        raise MeasurementError(f"all probabilities of a token sum to {least:.4f}, below 1")


def _decoded(choice: Mapping[str, Any], num_tokens: int, num_logprobs: int) -> Top:
    """Return what stands in ``logprobs`` when tokens are named ``token_id:N``."""
    found = choice.get("logprobs")
    rows = found.get("top_logprobs") if isinstance(found, dict) else None
    if not isinstance(rows, list) or len(rows) != num_tokens:
        raise MeasurementError("an answer has no logprobs of its tokens, which were asked for")
    try:
        # The sampled token is named as well; beyond the asked-for ones it is of no use here.
        tops = [
            sorted(
                ((-float(value), int(str(name).removeprefix("token_id:"))))
                for name, value in row.items()
            )[:num_logprobs]
            for row in rows
        ]
        ids = np.array([[token for _, token in row] for row in tops], dtype=np.int64)
        logprobs = np.array([[-cost for cost, _ in row] for row in tops], dtype=np.float64)
    except (AttributeError, TypeError, ValueError) as error:
        raise MeasurementError(f"the logprobs of an answer cannot be read: {error}") from error
    return Top(ids=ids, logprobs=_possible(logprobs))


def _possible(logprobs: Floats) -> Floats:
    return np.where(logprobs < IMPOSSIBLE, -np.inf, logprobs)


def _choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise MeasurementError("the answer is no completion with one choice")
    return choices[0]


def _ids(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise MeasurementError(f"no {name} in the answer: only vLLM is known to give them")
    return tuple(value)
