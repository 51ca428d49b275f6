"""What the streams of one block do inside its window: requests, steps, accepted tokens. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from orchestrator.core.types import Cell
from orchestrator.fakes.simulate.board import rng_of
from orchestrator.fakes.simulate.drafting import LEVELS, AcceptanceTable, level_of
from orchestrator.fakes.simulate.verification import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """The closed loop that a block is measured under."""

    window_s: float = 60.0
    max_tokens: int = 256
    """Output tokens of every answer but the first of each stream, which is staggered."""
    warmup_tokens: int = 32
    num_prompts: int = 64
    """Prompts of the workload; each pass over them has its own order."""
    prompt_share: float = 0.75
    """Part of the variance of difficulty that the prompt decides and all arms share, 0 to 1; the
    rest is the text that happens to be sampled. Assumed: nobody has published it."""
    blocks_per_cell: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast the engine goes in one block."""

    step_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What was counted in the window and around it."""

    num_steps: int
    """Steps of single streams; each drafts once if the arm speculates."""
    by_position: Ints
    """[depth] accepted drafts by position; empty without speculation."""
    num_first: int
    """Tokens that prefills gave."""
    num_requests: int
    num_outside: int
    """Tokens of the same requests before and after the window."""
    ttft_s: Floats
    tpot_s: Floats
    ramp_s: float
    """From the start of the streams to the window: until every first answer is complete."""
    drain_s: float
    """From the end of the window to the end of the last answer."""

    @property
    def num_accepted(self) -> int:
        """Accepted drafts."""
        return int(self.by_position.sum())

    @property
    def tokens(self) -> int:
        """Output tokens of all streams in the window."""
        return self.num_steps + self.num_accepted + self.num_first

    @property
    def total_tokens(self) -> int:
        """Output tokens of all requests, ramp and drain included."""
        return self.tokens + self.num_outside


def run_window(
    cell: Cell,
    *,
    table: AcceptanceTable | None,
    pace: Pace,
    difficulty: Floats,
    shape: LoadShape,
    rng: np.random.Generator,
) -> Happened:
    """Run the streams of one block.

    A request takes (tokens - 1) / (its tokens a step) steps; the accepted lengths of the steps in
    the window are drawn from the law of its level. So the luck of the steps shows in the tokens of
    the window and not in when a request ends; its prefill's token and those of the drain are
    counted at their mean.

    Args:
        cell: Its streams count.
        table: Laws of the accepted length; None without speculation.
        pace: Step and prefill time.
        difficulty: [streams, num_turns] of the requests; see ``difficulties``.
        shape: The load.
        rng: Luck of this boot.
    """
    levels = level_of(difficulty)
    lengths = np.ones_like(difficulty) if table is None else table.lengths[levels]
    tokens = np.full(difficulty.shape, shape.max_tokens)
    share = np.arange(1, cell.streams + 1) / cell.streams
    # As the real load does it: streams that start together must not end together.
    tokens[:, 0] = np.maximum(2, np.ceil(shape.max_tokens * share))
    busy = (tokens - 1) / lengths * pace.step_s
    ends = np.cumsum(busy + pace.prefill_s, axis=1) - pace.prefill_s
    begins = ends - busy
    # The window opens when the first answer of every stream is complete.
    ramp_s = float(ends[:, 0].max())
    ends, begins = ends - ramp_s, begins - ramp_s
    spans = np.minimum(ends, shape.window_s) - np.maximum(begins, 0.0)
    inside = np.clip(spans, 0.0, None) / pace.step_s
    outside = busy / pace.step_s - inside
    before = np.concatenate([np.full((cell.streams, 1), -np.inf), ends[:, :-1]], axis=1)
    made = before < shape.window_s
    num_steps, by_position = _count(inside, levels, table, rng)
    num_first = int(np.count_nonzero((begins > 0) & (begins <= shape.window_s)))
    asked = int(np.count_nonzero(made & (before >= 0)))
    done = (ends > 0) & (ends <= shape.window_s)
    wavering = 1.0 + rng.standard_normal(asked) * 0.05
    return Happened(
        num_steps=num_steps,
        by_position=by_position,
        num_first=num_first,
        num_requests=int(np.count_nonzero(made)),
        num_outside=int(np.count_nonzero(made))
        - num_first
        + round(float((outside * lengths)[made].sum())),
        ttft_s=pace.prefill_s * np.abs(wavering) + pace.step_s,
        tpot_s=busy[done] / (tokens[done] - 1),
        ramp_s=ramp_s,
        drain_s=float(max(0.0, ends[made].max() - shape.window_s)),
    )


def difficulties(
    cell: Cell,
    *,
    prompts: tuple[object, ...],
    num_turns: int,
    shape: LoadShape,
    rng: np.random.Generator,
) -> Floats:
    """Return the difficulty of every request of a block, [streams, num_turns].

    Args:
        cell: Its streams count.
        prompts: What the order of the prompts follows from.
        num_turns: Requests of each stream.
        shape: The load.
        rng: Luck of this boot, for the sampled text.
    """
    num_laps = math.ceil(cell.streams * num_turns / shape.num_prompts)
    hard = _order(prompts, num_laps, shape.num_prompts)[: cell.streams * num_turns]
    # Requests take the prompts in the order (turn, stream), as the real sequence does.
    own = hard.reshape(num_turns, cell.streams).T
    luck = rng.standard_normal(own.shape)
    return np.asarray(
        math.sqrt(shape.prompt_share) * own + math.sqrt(1.0 - shape.prompt_share) * luck
    )


def turns_needed(table: AcceptanceTable | None, pace: Pace, shape: LoadShape) -> int:
    """Return the most requests that a stream can begin before the window closes."""
    lengths = np.ones(1) if table is None else table.lengths
    decode_s = (shape.max_tokens - 1) * pace.step_s
    least_s = pace.prefill_s + decode_s / float(lengths.max())
    longest_ramp_s = pace.prefill_s + decode_s / float(lengths.min())
    return math.ceil((longest_ramp_s + shape.window_s) / least_s) + 2


def mean_steps_per_token(table: AcceptanceTable | None, shape: LoadShape) -> float:
    """Return the expected steps per decoded token, over all prompts and all sampled texts.

    Every answer has the same tokens, so this is the mean of 1 / (tokens a step) over requests.
    """
    return 1.0 if table is None else float(_level_chances(shape) @ (1.0 / table.lengths))


def _count(
    inside: Floats, levels: Ints, table: AcceptanceTable | None, rng: np.random.Generator
) -> tuple[int, Ints]:
    """Return the steps and the accepted drafts by position."""
    if table is None:
        return round(float(inside.sum())), np.zeros(0, dtype=np.int64)
    by_level = np.bincount(levels.ravel(), weights=inside.ravel(), minlength=len(LEVELS))
    # Rounding to the nearest would favour some levels for all arms alike; chance does not.
    steps = np.floor(by_level + rng.random(len(LEVELS))).astype(np.int64)
    counts = table.draw_lengths(steps, rng)
    return int(counts.sum()), counts[::-1].cumsum()[::-1][1:]


@lru_cache(maxsize=4096)
def _order(prompts: tuple[object, ...], num_laps: int, num_prompts: int) -> Floats:
    """Return the prompts' own difficulties in the order in which they are asked."""
    rng = rng_of("prompts", *prompts)
    own = prompt_difficulties(num_prompts)
    return np.concatenate([own[rng.permutation(num_prompts)] for _ in range(num_laps)])


@lru_cache(maxsize=16)
def prompt_difficulties(num_prompts: int) -> Floats:
    """Return the difficulty of every prompt: normal quantiles, so that no draw decides them."""
    normal = NormalDist()
    shares = (np.arange(num_prompts) + 0.5) / num_prompts
    return np.array([normal.inv_cdf(share) for share in shares])


@lru_cache(maxsize=16)
def _level_chances(shape: LoadShape) -> Floats:
    """Return the chance of each level over prompts and texts, [num_levels]."""
    normal = NormalDist()
    middle = (LEVELS[1:] + LEVELS[:-1]) / 2
    spread = max(math.sqrt(1.0 - shape.prompt_share), 1e-9)
    centres = math.sqrt(shape.prompt_share) * prompt_difficulties(shape.num_prompts)
    below = np.array([[normal.cdf((m - c) / spread) for m in middle] for c in centres])
    ends = np.ones((len(centres), 1))
    return np.asarray(np.diff(np.concatenate([0 * ends, below, ends], axis=1)).mean(axis=0))
