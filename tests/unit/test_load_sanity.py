from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import CONF_DIR
from orchestrator.load.sanity import Garbage, garbage_kind, garbage_reason
from orchestrator.load.workload import load_workload

CODE = "def f(self, key):\n    self._data[key] = self._data.get(key, 0) + 1\n    return self"
STUMBLING = "def f(x): (x): (x): def f(x): (x): def f(x): def f(x): (x): (x): (x): def f(x):"
"""What vLLM 0.32.0 says of a code model with a `repetition_penalty` of 0.01."""
REPETITIVE_CODE = "\n".join(f"        self.assertEqual(a[{i}], b[{i}])" for i in range(20))


@pytest.mark.parametrize(
    "texts",
    [
        ["a " * 128] * 10,
        ["!" * 200] * 4,
        [""] * 3,
        ["  \n"] * 3,
        ["a a a a a a a a a a"] * 19 + [CODE],
        ["", "!" * 200, "a " * 60],
        ["foo bar " * 32] * 4,
        ["the quick brown fox " * 10] * 4,
        ["Of course. " + "a b c d e f g h " * 12] * 4,
        ["abab" * 20] * 4,
        ["<|im_end|>" * 1 + "\u00e9\u00e8\u00ea" * 40] * 4,
        ["import os\n" * 30] * 4,
        ["foo bar " * 32, "", "!" * 200, "x y z " * 12],
        [STUMBLING] * 4,
        [STUMBLING * 5] * 4,
    ],
)
def test_garbage_reason_degenerate_answers_are_named(texts: list[str]) -> None:
    reason = garbage_reason(texts)

    assert reason is not None
    assert f"of {len(texts)} answers" in reason


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [CODE] * 5,
        [REPETITIVE_CODE] * 5,
        ["a " * 128] * 8 + [CODE] * 2,
        ["yes"] * 5,
        ["aaaa"] * 5,
        ["        return None\n"] * 5,
        ["\n".join(f"import module_{i}" for i in range(20))] * 5,
        ["\n".join(f"from package import name_{i}" for i in range(20))] * 5,
        ["\n".join(f"| {i} | {i * i} | yes |" for i in range(20))] * 5,
        ["| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"] * 5,
        ["\n".join(f"{i},0,0,{i * 7}" for i in range(20))] * 5,
        ["f(a, b, c, d, e, g, h, i, j, k, l, m)"] * 5,
        ["\n".join(f"        self.x{i} = x{i}" for i in range(20))] * 5,
        ["if a:\n    return 1\n" * 3 + CODE] * 5,
        ["no no no, yes: no no, yes, and then all the others too"] * 5,
        ["foo bar " * 32] * 8 + [CODE] * 2,
        [" ".join(f"mask |= mask >> {2**i}" for i in range(6))] * 5,
        ["from .a import * # noqa\nfrom .b import * # noqa\nfrom .c import * # noqa"] * 5,
    ],
)
def test_garbage_reason_honest_text_passes(texts: list[str]) -> None:
    assert garbage_reason(texts) is None


@pytest.mark.parametrize("name", ["code", "chat", "json", "reasoning", "tools", "long_context"])
def test_no_shipped_text_looks_like_a_loop(name: str) -> None:
    workload = load_workload(CONF_DIR / "workload" / f"{name}.jsonl")
    looping = [p.prompt_id for p in workload.prompts if garbage_reason([p.full_text])]
    assert looping == []


PARAGRAPH = (
    "The bridge was closed after the engineer found cracks in two of its bearings, and the mayor "
    "said that repairs would take until spring because the parts are cast abroad. "
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", Garbage.EMPTY),
        (" \n\t", Garbage.EMPTY),
        ("a " * 60, Garbage.REPETITION),
        (PARAGRAPH * 6, Garbage.REPETITION),
        ("I see. " + PARAGRAPH * 8 + "The bridge was", Garbage.REPETITION),
        ("\u6771\u4eac\u306e\u5929\u6c17\u306f\u660e\u65e5\u3082\u6674\u308c\u307e\u3059" * 9,
         Garbage.REPETITION),
        ("It is\0 fine and done by now.", Garbage.CONTROL),
        ("ab\x01c\x02d\x03e f", Garbage.CONTROL),
        ("caf\ufffd\ufffd and a b \ufffd c", Garbage.CONTROL),
        ("The weather in the city that you asked for is \ufffd", Garbage.CUT_CHARACTER),
        ("Half of a pair, as some servers part them: " + chr(0xD83E), Garbage.CUT_CHARACTER),
    ],
)  # fmt: skip
def test_garbage_kind_names_what_is_no_text(text: str, kind: Garbage) -> None:
    assert garbage_kind(text) is kind


@pytest.mark.parametrize(
    "text",
    [
        *(CODE, REPETITIVE_CODE, "yes", "17", PARAGRAPH, PARAGRAPH * 2),
        "Gr\u00fc\u00dfe aus K\u00f6ln, \u6771\u4eac \U0001f98a",
        "\x0c\n# A page of a source file begins with a form feed, as some of the library's do.\n",
        "print('\x1b[1mbold\x1b[0m')  # bold on any terminal that knows the sequence",
        "A letter that could not be read (\ufffd) stands within this sentence, which goes on.",
        "\n".join(f"{i},{i * i},0.{i}" for i in range(60)),
    ],
)
def test_garbage_kind_of_text_is_none(text: str) -> None:
    assert garbage_kind(text) is None


@given(st.lists(st.sampled_from(["", "a " * 60, PARAGRAPH * 9, "x\0y", "no \ufffd"]), min_size=1))
def test_garbage_reason_counts_every_answer_once(texts: list[str]) -> None:
    reason = garbage_reason(texts)

    assert reason is not None
    counts = [int(number) for number in re.findall(r"(?:^|, )(\d+) (?!of)", reason)]
    first = re.match(rf"(\d+) of {len(texts)} answers", reason)
    assert first is not None
    assert int(first[1]) + sum(counts) == len(texts)


@given(st.text(), st.integers(1, 3))
def test_garbage_kind_judges_any_text_and_a_nul_is_never_fine(text: str, at: int) -> None:
    garbage_kind(text)

    assert garbage_kind(text[:at] + "\0" + text[at:]) is not None
