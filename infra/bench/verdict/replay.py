"""Published results of one GB10, put before ``decide``: what they show and what they do not.

Both files lie beside the repository and not in it (``shared/data``); without them there is nothing
to replay.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.boot_model import BootScore, fit_boots
from orchestrator.core.effects import pair
from orchestrator.core.estimate import Contrast
from orchestrator.core.types import Arm
from orchestrator.decide_command import read_observations
from orchestrator.decide_report import format_answers
from orchestrator.results.answer import answers
from orchestrator.results.boots import RunsAre
from orchestrator.results.doubts import Sifted, sift
from orchestrator.results.files import ReadOptions
from orchestrator.results.question import Answer, Question

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
ARTICLE_CSV = DATA / "gb10_article_runs.csv"
DEPTHS_CSV = DATA / "gb10_depth_grid.csv"

ARTICLE_COLUMNS = ReadOptions(
    columns={
        "num_speculative_tokens": "k",
        "draft_sample_method": "draft",
        "rejection_sample_method": "reject",
        "temperature": "T",
        "streams": "concurrency",
    },
    constants={"engine_build": "0.28.0", "workload": "code-generation probe"},
    left_out=(("config", "mtp"),),
)
"""The built-in predictor is no arm of this program: it has no draft rule."""
GRID_COLUMNS = ReadOptions(
    columns={"tok_s": "mean_decode_tok_s_c1"},
    constants={
        "engine_build": "not-published",
        "draft_sample_method": "rule",
        "rejection_sample_method": "not-published",
        "streams": "1",
        "temperature": "0",
        "workload": "54 requests",
    },
    left_out=(("num_speculative_tokens", ""),),
    ignored=("num_requests",),
)
"""The grid does not say its engine, rules and temperature; all rows have them in common."""

BOTH, DRAFT_ALONE, RULE_ALONE = (
    "probabilistic+block-7",
    "probabilistic+standard-5",
    "greedy+block-5",
)
PLAIN = "greedy+standard-5"
ALONE = (
    (DRAFT_ALONE, [f"c{streams}_t0.7" for streams in (1, 2, 4, 8, 16)]),
    (RULE_ALONE, ["c2_t1", "c8_t1"]),
)
"""Either key alone, in the cells that it and the plain arm have at its temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPair:
    """Two depths of the grid."""

    means: Contrast
    """Of the published means, simultaneous over all pairs of depths."""
    medians: Contrast
    """Of the published medians, the same."""
    alone: Contrast
    """Of the means, as if only this pair had been looked at."""


def article() -> Sifted:
    """Return the article's rows as ``decide`` takes them.

    Raises:
        ConfigError: The file is not there.
    """
    observations, _ = read_observations([ARTICLE_CSV], ARTICLE_COLUMNS)
    return sift(observations)


def ask_article(
    *, reference: str, cells: Sequence[str], runs_are: RunsAre = "blocks", arms: Sequence[str] = ()
) -> Answer:
    """Return the answer of the article's rows to one question.

    Args:
        reference: Label of the arm that is taken to serve.
        cells: Keys of the cells that count, alike.
        runs_are: What its runs are taken as; the article does not say.
        arms: Labels of the arms that take part; empty for all.
    """
    rows = [i for i in article().observations if not arms or i.arm.label in arms]
    question = Question(reference=reference, weights=dict.fromkeys(cells, 1.0), runs_are=runs_are)
    return answers(rows, question)[0]


def ask_grid(reference: int) -> Answer:
    """Return the answer of the grid's means to "is any depth better than this one?".

    Each row is a boot: at one stream ``max_num_seqs``, in which they differ, cannot matter.
    """
    observations, _ = read_observations([DEPTHS_CSV], GRID_COLUMNS)
    question = Question(reference=f"rule+not-published-{reference}", runs_are="boots")
    return answers(sift(observations).observations, question)[0]


def grid_pair(a: int, b: int) -> GridPair:
    """Return two depths of the grid against each other, each of its four rows a boot.

    At one stream ``max_num_seqs`` cannot matter, so the four rows of a depth are replicates. Depth
    7 was named the best of five by these very rows, so the intervals hold for all ten pairs at a
    time (Bonferroni).
    """
    rows = _grid()
    num_pairs = math.comb(len({depth for depth, *_ in rows}), 2)
    together = 1 - 0.05 / num_pairs
    return GridPair(
        means=_grid_contrast(rows, a, b, column=2, confidence=together),
        medians=_grid_contrast(rows, a, b, column=3, confidence=together),
        alone=_grid_contrast(rows, a, b, column=2, confidence=0.95),
    )


def null_factor() -> tuple[tuple[int, int, Contrast], ...]:
    """Return all pairs of ``max_num_seqs``, the depths' means taken out; all must tell nothing."""
    rows = _grid()
    depths = sorted({depth for depth, *_ in rows})
    seqs = sorted({count for _, count, *_ in rows})
    means = {
        depth: sum(math.log(mean) for d, _, mean, _ in rows if d == depth) / len(seqs)
        for depth in depths
    }
    # The levels of another key stand in for arms; a depth's mean costs no degree of freedom here,
    # which makes the intervals a little too narrow and so the test a little too strict.
    fit = fit_boots(
        [
            BootScore(
                arm=_level(count), boot=f"{depth}/{count}", log_score=means[depth] - math.log(mean)
            )
            for depth, count, mean, _ in rows
        ]
    )
    confidence = round(1 - 0.05 / math.comb(len(seqs), 2), 4)
    return tuple(
        (a, b, pair(fit, _level(a), _level(b), confidence=confidence))
        for a, b in itertools.combinations(seqs, 2)
    )


def report() -> Iterator[str]:
    """Yield both replays as lines; without the data, that it is not there."""
    for path in (ARTICLE_CSV, DEPTHS_CSV):
        if not path.exists():
            yield f"no replay: {path.name} is not beside the repository (shared/data)"
            return
    yield from _article_lines()
    yield ""
    yield from _grid_lines()


def _article_lines() -> Iterator[str]:
    yield "# Replay of a published article: DFlash2 on one GB10"
    yield ""
    sifted = article()
    best = ask_article(
        reference="probabilistic+block-5",
        cells=["c1_t0.7"],
        arms=[BOTH, "probabilistic+block-5"],
    )
    boots = ask_article(
        reference="probabilistic+block-5",
        cells=["c1_t0.7"],
        runs_are="boots",
        arms=[BOTH, "probabilistic+block-5"],
    )
    for how, answer in (("as one boot", best), ("as a boot each", boots)):
        yield f"34.8 (39.7, 33.1, 31.5) against 29.3, the runs taken {how}:"
        yield f"  {_outcome(answer)}: {answer.sentences[0]}"
    for label, cells in (*ALONE, (DRAFT_ALONE, ["c1_t0.7"])):
        answer = ask_article(reference=PLAIN, cells=cells, runs_are="boots", arms=[label, PLAIN])
        yield f"{label} alone against {PLAIN} at {', '.join(cells)}, the runs as a boot each:"
        yield f"  {_outcome(answer)}: {' '.join(answer.sentences)}"
    yield (
        "acceptance: the file has none. The article gives ranges without counts, which is an order "
        "and not a test."
    )
    yield ""
    yield "What decide prints for it:"
    yield ""
    everything = answers(sifted.observations, Question(reference=PLAIN))
    num_rows = len(sifted.observations)
    yield from format_answers(everything, doubts=sifted.doubts, num_rows=num_rows)


def _outcome(answer: Answer) -> str:
    return answer.outcome.replace("_", " ")


def _grid_lines() -> Iterator[str]:
    yield "# Replay of a public depth grid: one GB10, one stream, four rows a depth"
    yield ""
    for other in (6, 8):
        found = grid_pair(7, other)
        verdict = "clear" if is_clear(found) else "cannot tell"
        answer = ask_grid(other)
        yield f"depth 7 against {other}: {verdict}"
        yield f"  means, for all ten pairs at a time: {found.means.in_words}"
        yield f"  medians, the same:                  {found.medians.in_words}"
        yield f"  means, this pair alone:             {found.alone.in_words}"
        yield f"  decide, with depth {other} serving: {_outcome(answer)}: {answer.sentences[0]}"
    pairs = null_factor()
    told = [f"{a} and {b}" for a, b, contrast in pairs if contrast.excludes_zero]
    yield f"max_num_seqs, which cannot matter: {', '.join(told) or 'no difference'}"
    for a, b, contrast in pairs:
        yield f"  {a} against {b}: {contrast.in_words}"


def is_clear(found: GridPair) -> bool:
    """Return whether means and medians both tell the depths apart, on the same side."""
    if not found.means.excludes_zero or not found.medians.excludes_zero:
        return False
    return ((found.means.log_ratio or 0) > 0) == ((found.medians.log_ratio or 0) > 0)


def _grid() -> list[tuple[int, int, float, float]]:
    """Return depth, max_num_seqs, mean and median of decode tokens / s of every row."""
    lines = DEPTHS_CSV.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [
        (
            int(row["num_speculative_tokens"]),
            int(row["max_num_seqs"]),
            float(row["mean_decode_tok_s_c1"]),
            float(row["median_decode_tok_s_c1"]),
        )
        for row in rows
        if row["num_speculative_tokens"]
    ]


def _grid_contrast(
    rows: Sequence[tuple[int, int, float, float]],
    a: int,
    b: int,
    *,
    column: int,
    confidence: float,
) -> Contrast:
    fit = fit_boots(
        [
            BootScore(
                arm=_level(row[0]), boot=f"{row[0]}/{row[1]}", log_score=-math.log(row[column])
            )
            for row in rows
        ]
    )
    return pair(fit, _level(a), _level(b), confidence=round(confidence, 4))


def _level(value: int) -> Arm:
    """Return an arm that stands for one level of the factor."""
    return Arm(
        engine_build="not published",
        num_speculative_tokens=value,
        draft_sample_method="not published",
        rejection_sample_method="not published",
    )
