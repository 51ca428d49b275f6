"""Random tokens are told from text, whatever its language."""

from __future__ import annotations

import base64
import random
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from orchestrator.load.prompts import Prompt
from orchestrator.load.random_text import MIN_BYTES, MIN_ORDER, order_information, random_reason
from orchestrator.load.workload import Workload, load_workload
from orchestrator.load.workload_card import Kind, new_card

PROJECT = Path(__file__).resolve().parents[2]
TARGET = PROJECT / "infra" / "tiny_models" / "target" / "tokenizer.json"


def workload_of(*texts: str, kind: Kind | None = None) -> Workload:
    prompts = tuple(
        Prompt(prompt_id=str(i), category="", text=text) for i, text in enumerate(texts)
    )
    card = None if kind is None else new_card("w", prompts, kind=kind)
    return Workload(name="w", digest="d", prompts=prompts, card=card)


def stdlib(*names: str) -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def words() -> list[str]:
    return sorted(set(re.findall(r"[a-z]+", stdlib("argparse.py", "tarfile.py", "pickle.py"))))


def random_words(chooser: random.Random) -> list[str]:
    known = words()
    return [" ".join(chooser.choice(known) for _ in range(60)) for _ in range(200)]


def frequent_words(chooser: random.Random) -> list[str]:
    known = words()
    weights = [1 / (rank + 1) for rank in range(len(known))]
    return [" ".join(chooser.choices(known, weights, k=60)) for _ in range(200)]


def random_tokens(chooser: random.Random) -> list[str]:
    tokenizer = Tokenizer.from_file(str(TARGET))
    size = tokenizer.get_vocab_size()
    return [tokenizer.decode([chooser.randrange(size) for _ in range(128)]) for _ in range(200)]


def behind_a_prefix(chooser: random.Random) -> list[str]:
    known = words()
    prefix = " ".join(chooser.choice(known) for _ in range(300))
    return [f"{prefix} {text}" for text in random_words(chooser)]


def runs_of_a_vocabulary(chooser: random.Random) -> list[str]:
    """Return overlapping runs of neighbours, as vLLM's random data set has them."""
    parts = words()
    known = [chooser.choice(parts) + chooser.choice(parts)[:3] for _ in range(20_000)]
    starts = [chooser.randrange(len(known)) for _ in range(200)]
    return [" ".join(known[(start + i) % len(known)] for i in range(300)) for start in starts]


def random_bytes(chooser: random.Random) -> list[str]:
    return [base64.b64encode(chooser.randbytes(300)).decode() for _ in range(200)]


def random_hex(chooser: random.Random) -> list[str]:
    return [chooser.randbytes(200).hex() for _ in range(200)]


@pytest.mark.parametrize(
    "make",
    [
        *(random_words, frequent_words, random_tokens, behind_a_prefix, runs_of_a_vocabulary),
        *(random_bytes, random_hex),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_prompts_are_recognised(
    make: Callable[[random.Random], list[str]], seed: int
) -> None:
    reason = random_reason(workload_of(*make(random.Random(seed))))

    assert reason is not None
    assert "look like random tokens" in reason
    assert "no draft can follow them" in reason


def pieces(text: str, size: int = 400) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def chinese(chooser: random.Random) -> list[str]:
    """Return sentences of people, adverbs, verbs and things, a few characters each."""
    parts = [
        ["\u6211\u4eec", "\u4ed6", "\u8001\u5e08", "\u5b66\u751f\u4eec", "\u6bcd\u4eb2"],
        ["\u6628\u5929", "\u5e38\u5e38", "\u5df2\u7ecf", "\u521a\u624d", "\u4e0d\u4f1a"],
        ["\u770b\u89c1", "\u4e70\u4e86", "\u559c\u6b22", "\u8ba8\u8bba", "\u5fd8\u8bb0"],
        ["\u8fd9\u672c\u4e66", "\u65b0\u7684\u8ba1\u5212", "\u90a3\u5ea7\u6865", "\u82f9\u679c"],
    ]
    return [
        "".join("".join(map(chooser.choice, parts)) + "\u3002" for _ in range(12))
        for _ in range(90)
    ]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(lambda: pieces(stdlib("argparse.py", "json/decoder.py")), id="code"),
        pytest.param(
            lambda: pieces(re.sub(r"\s+", " ", stdlib("argparse.py"))), id="code in one line"
        ),
        pytest.param(
            lambda: re.findall(r"[A-Z][^.]{30,200}\.", (PROJECT / "docs/design.md").read_text()),
            id="sentences",
        ),
        pytest.param(lambda: chinese(random.Random(1)), id="chinese"),
        pytest.param(
            lambda: [f"{t}\n{b}" for t, b in zip(
                pieces(stdlib("tarfile.py")), random_bytes(random.Random(1)), strict=False
            )],
            id="base64 in questions",
        ),
    ],
)  # fmt: skip
def test_text_is_not_called_random(texts: Callable[[], list[str]]) -> None:
    order = order_information(texts())

    assert order is None or order > MIN_ORDER
    assert random_reason(workload_of(*texts())) is None


@pytest.mark.parametrize("name", ["code", "long_context"])
def test_shipped_workload_large_enough_to_judge_is_text(name: str) -> None:
    workload = load_workload(PROJECT / "conf" / "workload" / f"{name}.jsonl")

    order = order_information(prompt.full_text for prompt in workload.prompts)

    assert order is not None
    assert order > 3 * MIN_ORDER


def test_heldout_prompts_of_the_demo_are_text() -> None:
    workload = load_workload(PROJECT / "infra" / "tiny_models" / "heldout_prompts.jsonl")

    assert random_reason(workload) is None
    assert order_information(prompt.full_text for prompt in workload.prompts) is not None


def test_too_little_text_is_not_judged() -> None:
    few = random_words(random.Random(1))[: MIN_BYTES // 500]

    assert order_information(few) is None
    assert random_reason(workload_of(*few)) is None


def test_prompt_that_is_there_many_times_is_not_judged() -> None:
    text = random_words(random.Random(1))[0]

    assert order_information([f"{text} {i}" for i in range(1000)]) is None


def test_card_that_says_random_is_believed_however_little_there_is() -> None:
    reason = random_reason(workload_of("def f():", kind="random_tokens"))

    assert reason is not None
    assert "the card of 'w' says random tokens" in reason


def test_card_that_says_text_does_not_hide_random_tokens() -> None:
    texts = random_words(random.Random(1))

    assert random_reason(workload_of(*texts, kind="text")) is not None
