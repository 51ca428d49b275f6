"""Observations of one engine step with their exact means, from the distributions the engine used.

A step verifies up to K draft tokens of every request. With p_j the target's distribution after j
accepted drafts (as verified with: bias, penalties, temperature, top-k and top-p applied), q_j the
distribution that draft j was drawn from, X_j the drafts and Y_j what is emitted, lossless means
that the text so far gives Y_0 the distribution p_0. Everything below is conditional on the text
before the step, of which p_0 and q_0 are functions. Ranks are ranks under the target. Token-wise
verification is Leviathan et al., arXiv 2211.17192; that by blocks Sun et al., arXiv 2403.10444.

`emitted_rank_b`: P(rank of Y_0 in b) = p_0(b), for every lossless rule. Token-wise rules draw Y_0
from min(p, q) + max(p - q, 0) = p_0. Block verification chooses the accepted length from the whole
block, but its guarantee holds for the joint distribution of the text: summed over accepted lengths
and over all that is drafted behind it, the first token has the marginal p_0. Y_1 has no such null
at a step's grain: given that block verification went on to it, it is not distributed as p_1; only
the text as a whole is. Hence the first token only.

`first_accepted`: X_0 is accepted with probability min(1, p_0(X_0) / q_0(X_0)), whose mean over X_0
drawn from q_0 is sum min(p_0, q_0). For a greedy draft q_0 is one-hot, and the sum is p_0(X_0).
Token-wise by definition. Under block verification X_0 also stays when a later draft is accepted,
and the mean is the same: with w_i the running joint ratio, S_i = sum max(w_i p_i - q_i, 0) and
h_i = S_i / (S_i + 1 - w_i) the chance at position i, P(accepted >= i given X_0..X_{i-1}) = w_i.
At the block's end h = w. Before it, E[w_{i+1}] over X_i drawn from q_i is sum min(w_i p_i, q_i) =
w_i - S_i, so that P = w_i - S_i + (1 - w_i + S_i) h_i = w_i. It takes drafts that are fresh draws
from q, and uniforms that are fresh in every step: noise that is used again shows here.

`recovered_*`: the token behind j < K accepted drafts is drawn from max(w p_j - q_j, 0) / Z, with
w = 1 token-wise and w = w_j under block verification. Given the text, the accepted drafts and that
verification ended at j, all three are fixed and the draw is fresh: the null is exact under either
rule. `in_candidates` asks whether it falls on the draft's likeliest tokens, where noise shared by
draft and recovery shows; where they hold nothing, like a greedy draft's one token, it is not asked.
Where Z is next to nothing beside w the engine's own rounding decides, and nothing is observed
(`MIN_RESIDUAL`). Both are known before the draw, so that leaving them out biases nothing.

`bonus_rank_b`: when every draft is accepted the token behind them is drawn from p_K with fresh
noise under either rule, given any block.

Rows at temperature 0 are not observed. Placeholders (draft -1) are rejected without a draw and
their token is drawn from p_j itself; only its rank as a first token is observed.
"""

# mypy: disable-error-code="import-untyped,import-not-found,no-any-return"

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from serve_apps.audit.records import (
    BONUS_RANK,
    BUCKET_ENDS,
    EMITTED_RANK,
    FIRST_ACCEPTED,
    KINDS,
    RANK_BUCKETS,
    RECOVERED_IN_CANDIDATES,
    RECOVERED_RANK,
)

Tensor = Any
"""A torch.Tensor; torch is not installed where types are checked."""

STANDARD, BLOCK = "standard", "block"
MIN_RESIDUAL = 1e-3
"""Least Z, as a share of w. Float32 probabilities are good to about 3e-7, the engine's as well as
these: Z is then known to 0.03 %."""
MIN_RATIO = 1e-12
"""Least w; below, w p is too small for float32."""
NUM_CANDIDATES = 64
"""The draft's likeliest tokens that count as its candidates; a DFlash2 selector keeps fewer, and
then they are its whole support."""
MAX_ROWS = 64
"""Requests at a time: 64 rows of 250,000 float32 are 64 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What one call of the engine's rejection sampler was given and what it returned."""

    target_logits: Tensor
    """[num_logits, V], after the sampling parameters, temperature included."""
    draft_logits: Tensor | None
    """[num_slots, K, V'], before temperature, V' <= V; None for greedy drafts."""
    draft_sampled: Tensor
    """[num_logits]: of a request the last sampled token and then its drafts; -1 is none."""
    cu_num_logits: Tensor
    """[num_requests + 1]: where a request's rows begin; a request of n rows has n - 1 drafts."""
    idx_mapping: Tensor
    """[num_requests]: the slot of a request."""
    temperature: Tensor
    """[num_slots]"""
    sampled: Tensor
    """[num_requests, K + 1]: emitted tokens."""
    num_sampled: Tensor
    """[num_requests]: how many of them, 1 + accepted drafts."""
    rule: str
    """standard or block; under another rule the first token alone is observed."""


def observe_verification(given: Verification) -> Tensor:
    """Return every observation of one verification.

    Returns:
        [num_requests, 2, len(KINDS)] float32, x and m by request; NaN where a kind does not occur.
    """
    device = given.target_logits.device
    num_requests = len(given.cu_num_logits) - 1
    parts = [_observe_rows(given, rows) for rows in _slices(num_requests, device)]
    return torch.cat(parts) if parts else _nothing(0, device)


def observe_sampling(logits: Tensor, tokens: Tensor, temperature: Tensor) -> Tensor:
    """Return the ranks of tokens drawn without drafts.

    Args:
        logits: [num_requests, V], after the sampling parameters, temperature included.
        tokens: [num_requests], drawn from them.
        temperature: [num_requests]

    Returns:
        [num_requests, 2, len(KINDS)] float32 with `emitted_rank_*` only; NaN elsewhere.
    """
    parts = []
    for rows in _slices(len(tokens), logits.device):
        found = _nothing(len(rows), logits.device)
        target = _softmax(logits[rows])
        _put_ranks(found, EMITTED_RANK, target, target, tokens[rows], temperature[rows] > 0)
        parts.append(found)
    return torch.cat(parts) if parts else _nothing(0, logits.device)


def _slices(count: int, device: Any) -> Iterator[Tensor]:
    for start in range(0, count, MAX_ROWS):
        yield torch.arange(start, min(start + MAX_ROWS, count), device=device)


def _observe_rows(given: Verification, rows: Tensor) -> Tensor:
    found = _nothing(len(rows), given.target_logits.device)
    start = given.cu_num_logits[rows].long()
    num_drafts = given.cu_num_logits[rows + 1].long() - start - 1
    accepted = given.num_sampled[rows].long() - 1
    slots = given.idx_mapping[rows].long()
    temperature = given.temperature[slots].float()
    drawn = temperature > 0

    first = _softmax(given.target_logits[start])
    emitted = given.sampled[rows, 0].long()
    _put_ranks(found, EMITTED_RANK, first, first, emitted, drawn)

    if given.rule not in (STANDARD, BLOCK):
        return found
    last = _softmax(given.target_logits[start + accepted])
    token = given.sampled[rows, accepted].long()
    is_bonus = drawn & (num_drafts > 0) & (accepted == num_drafts)
    _put_ranks(found, BONUS_RANK, last, last, token, is_bonus)

    final = len(given.draft_sampled) - 1
    first_draft = given.draft_sampled[(start + 1).clamp(max=final)].long()
    draft = _drafted(given, slots, torch.zeros_like(accepted), first_draft, first)
    offered = drawn & (num_drafts > 0) & (first_draft >= 0)
    overlap = torch.minimum(first, draft).sum(-1).clamp(max=1.0)
    _put(found, FIRST_ACCEPTED, (accepted > 0).float(), overlap, offered)

    rejected_draft = given.draft_sampled[(start + accepted + 1).clamp(max=final)].long()
    rejected = drawn & (accepted < num_drafts) & (rejected_draft >= 0)
    depth = accepted.clamp(max=given.sampled.shape[1] - 2)
    draft = _drafted(given, slots, depth, rejected_draft, last)
    ratio = _joint_ratio(given, rows, accepted) if given.rule == BLOCK else None
    _put_recovered(found, last, draft, token, rejected, ratio)
    return found


def _joint_ratio(given: Verification, rows: Tensor, accepted: Tensor) -> Tensor:
    """Return w behind the accepted drafts of each row: the running min(1, w p / q), from 1."""
    start = given.cu_num_logits[rows].long()
    slots = given.idx_mapping[rows].long()
    log_ratio = torch.zeros(len(rows), device=rows.device)
    for depth in range(given.sampled.shape[1] - 1):
        going = depth < accepted
        position = torch.where(going, start + depth, start)
        token = given.draft_sampled[torch.where(going, position + 1, start)].long().clamp(min=0)
        target = _log_probability(given.target_logits[position].float(), token)
        if given.draft_logits is not None:
            drafted = given.draft_logits[slots, depth].float() / _divisor(given, slots)
            target = target - _log_probability(drafted, token.clamp(max=drafted.shape[1] - 1))
        log_ratio = torch.where(going, (log_ratio + target).clamp(max=0.0), log_ratio)
    return log_ratio.exp()


def _log_probability(logits: Tensor, token: Tensor) -> Tensor:
    return logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(-1)


def _drafted(
    given: Verification, slots: Tensor, depth: Tensor, token: Tensor, target: Tensor
) -> Tensor:
    """Return q, [num_rows, V]: of the draft at `depth` of its slot, one-hot for greedy drafts."""
    if given.draft_logits is None:
        one_hot = torch.zeros_like(target)
        return one_hot.scatter_(1, token.clamp(min=0)[:, None], 1.0)
    logits = given.draft_logits[slots, depth].float()
    draft = _softmax(logits / _divisor(given, slots))
    missing = target.shape[1] - draft.shape[1]
    return torch.nn.functional.pad(draft, (0, missing)) if missing > 0 else draft


def _divisor(given: Verification, slots: Tensor) -> Tensor:
    """Return temperatures as a column; 1 for greedy rows, which are not observed."""
    temperature = given.temperature[slots].float()
    return torch.where(temperature > 0, temperature, 1.0)[:, None]


def _put_recovered(
    found: Tensor,
    target: Tensor,
    draft: Tensor,
    token: Tensor,
    rejected: Tensor,
    ratio: Tensor | None,
) -> None:
    weight = torch.ones_like(target[:, 0]) if ratio is None else ratio
    residual = (weight[:, None] * target - draft).clamp(min=0.0)
    mass = residual.sum(-1)
    where = rejected & (weight >= MIN_RATIO) & (mass >= MIN_RESIDUAL * weight)
    null = residual / torch.where(where, mass, 1.0)[:, None]
    _put_ranks(found, RECOVERED_RANK, target, null, token, where)
    top, candidates = draft.topk(min(NUM_CANDIDATES, draft.shape[1]), dim=-1)
    held = (null.gather(1, candidates) * (top > 0)).sum(-1)
    within = ((candidates == token[:, None]) & (top > 0)).any(-1)
    _put(found, RECOVERED_IN_CANDIDATES, within.float(), held, where & (held > 0))


def _put_ranks(
    found: Tensor, prefix: str, target: Tensor, null: Tensor, token: Tensor, where: Tensor
) -> None:
    """Record which bucket of the target's ranks a token drawn from `null` fell into."""
    count = min(BUCKET_ENDS[-1], target.shape[1])
    order = target.topk(count, dim=-1).indices
    held = null.gather(1, order)
    hit = order == token[:, None]
    start = 0
    rest_x, rest_m = torch.ones_like(held[:, 0]), torch.ones_like(held[:, 0])
    for bucket, end in zip(RANK_BUCKETS, BUCKET_ENDS, strict=False):
        x, m = hit[:, start:end].any(-1).float(), held[:, start:end].sum(-1).clamp(max=1.0)
        _put(found, prefix + bucket, x, m, where)
        rest_x, rest_m, start = rest_x - x, rest_m - m, end
    _put(found, prefix + RANK_BUCKETS[-1], rest_x, rest_m.clamp(min=0.0), where)


def _put(found: Tensor, kind: str, x: Tensor, m: Tensor, where: Tensor) -> None:
    column = KINDS.index(kind)
    nothing = torch.full_like(m, float("nan"))
    known = where & ~m.isnan()  # NaN logits have no null
    found[:, 0, column] = torch.where(known, x, nothing)
    found[:, 1, column] = torch.where(known, m, nothing)


def _nothing(count: int, device: Any) -> Tensor:
    return torch.full((count, 2, len(KINDS)), float("nan"), device=device)


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits.float(), dim=-1)
