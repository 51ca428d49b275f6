r"""Tell prompts made of random tokens from text: in text, the order of the words says something.

The statistic is the share by which zlib packs the text better than the same words shuffled.
Measured on 20 to 300 kB, repeats left out:

    random tokens of vocabularies of 100,000 and 200,000     0.002 to 0.013
      (uniform, in vLLM's runs of consecutive ids, with a common prefix, from 5,000 ids)
    random tokens of infra/tiny_models/target               -0.011 to -0.008
    random words, evenly or by frequency; characters; hex   -0.007 to 0.002
    base64 of random bytes -0.003; of English text           0.008 to 0.032
    tables of numbers (CSV)                                  0.050 to 0.12
    unrelated single sentences, English and Russian          0.052 to 0.12
    messages in German, Finnish, Ukrainian, Korean           0.065 to 0.17
    messages in Japanese, Chinese, Vietnamese                0.21 to 0.34
    prose in passages, Markdown                              0.17 to 0.22
    Python, C, JavaScript (minified too), SQL, shell, CSS    0.19 to 0.40
    shipped workloads: code 0.19, long_context 0.27; the others are too small to be judged

So a workload of nothing but base64 counts as random: no draft can follow it either.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable

from orchestrator.load.workload import Workload

MIN_ORDER = 0.03
"""Less order than this is random; between the two groups of the table above."""

MIN_BYTES = 20_000
"""Less text than this, repeats left out, cannot be judged: 8 kB of sentences come down to 0.029."""

MAX_CHARS = 300_000
"""More text than this is not looked at; it takes a quarter of a second."""

PASSAGE_UNITS = 8
"""A run of this many units that was there before is left out: a common prefix, overlapping runs
of a vocabulary and prompts that are there twice have an order, and say nothing."""

_BY_CHARACTER = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces: Thai to Lao, Burmese, Khmer, kana, Chinese characters."""
_MARKS = "\u0300-\u036f\u0590-\u05ff\u0610-\u06ff\u0900-\u0dff"
"""Blocks with combining signs, which belong to their word."""
_UNIT = re.compile(
    rf"\s*(?:[{_BY_CHARACTER}]|(?:[^\W{_BY_CHARACTER}]|[{_MARKS}])+|[^\w\s{_BY_CHARACTER}]+)|\s+"
)
"""A word, or a run of signs, with the space before it."""


def random_reason(workload: Workload) -> str | None:
    """Return why a workload is no measure of speculative decoding, or None.

    None also means that there is too little text to tell.
    """
    if workload.card is not None and workload.card.kind == "random_tokens":
        return f"the card of '{workload.name}' says random tokens{_CONSEQUENCE}"
    order = order_information(prompt.full_text for prompt in workload.prompts)
    if order is None or order >= MIN_ORDER:
        return None
    return (
        f"the prompts of '{workload.name}' look like random tokens (shuffling their words changes "
        f"the packed size by {order:.1%}, text by {MIN_ORDER:.0%} or more){_CONSEQUENCE}"
    )


_CONSEQUENCE = (
    ": no draft can follow them, and acceptance comes out several times too low, for example "
    "2 % of drafted tokens where chat gives 16 %"
)


def order_information(texts: Iterable[str]) -> float | None:
    """Return the share of the packed size that the order of the words saves.

    Formula: 1 - zlib(text) / zlib(its words shuffled). About 0 for random tokens; 0.05 to 0.4
    for text. None below MIN_BYTES of text that is not repeated.
    """
    units = _novel_units(texts)
    ordered = _bytes(units)
    if len(ordered) < MIN_BYTES:
        return None
    random.Random(0).shuffle(units)
    return 1 - len(zlib.compress(ordered, 9)) / len(zlib.compress(_bytes(units), 9))


def _novel_units(texts: Iterable[str]) -> list[str]:
    """Return words and signs in order, without passages that were there before."""
    seen: set[tuple[str, ...]] = set()
    kept: list[str] = []
    room = MAX_CHARS
    for text in texts:
        units = _UNIT.findall(text[:room])
        room -= len(text)
        resume = 0
        for index, unit in enumerate(units):
            passage = tuple(units[index : index + PASSAGE_UNITS])
            if passage in seen:
                resume = index + len(passage)
            seen.add(passage)
            if index >= resume:
                kept.append(unit)
        if room <= 0:
            break
    return kept


def _bytes(units: Iterable[str]) -> bytes:
    return "".join(units).encode("utf-8")
