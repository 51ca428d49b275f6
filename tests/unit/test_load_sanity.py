from __future__ import annotations

import pytest

from orchestrator.config import CONF_DIR
from orchestrator.load.sanity import garbage_reason
from orchestrator.load.workload import load_workload

CODE = "def f(self, key):\n    self._data[key] = self._data.get(key, 0) + 1\n    return self"
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
    ],
)
def test_garbage_reason_honest_text_passes(texts: list[str]) -> None:
    assert garbage_reason(texts) is None


@pytest.mark.parametrize("name", ["code", "chat", "json", "reasoning", "tools", "long_context"])
def test_no_shipped_text_looks_like_a_loop(name: str) -> None:
    workload = load_workload(CONF_DIR / "workload" / f"{name}.jsonl")
    looping = [p.prompt_id for p in workload.prompts if garbage_reason([p.full_text])]
    assert looping == []
