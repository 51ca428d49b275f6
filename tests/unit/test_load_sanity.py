from __future__ import annotations

import pytest

from orchestrator.load.sanity import garbage_reason

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
    ],
)
def test_garbage_reason_honest_text_passes(texts: list[str]) -> None:
    assert garbage_reason(texts) is None
