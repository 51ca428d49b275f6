"""Calls whose parts do not fit each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.sampling import Shaping
from orchestrator.errors import ConfigError
from orchestrator.load.call import Call, Sampling

SAMPLING = Sampling(
    temperature=0.7, shaping=Shaping(top_p=0.9, top_k=20), seed=11, max_tokens=8, ignore_eos=True
)
CHAT = Call(
    request_id="r",
    prompt_id="p",
    prompt="def f():",
    endpoint="chat",
    model="m",
    sampling=SAMPLING,
)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"extra": {"temperature": 0.0}}, "extra.temperature"),
        ({"extra": {"logit_bias": {}}}, "extra.logit_bias"),
        ({"endpoint": "completions", "extra": {"tools": []}}, "extra.tools"),
        ({"endpoint": "completions", "messages": ({"role": "user"},)}, "messages"),
        ({"dialect": "openai"}, "top_k"),
        (
            {"dialect": "openai", "sampling": replace(SAMPLING, shaping=Shaping(top_p=0.9))},
            "ignore_eos",
        ),
        (
            {
                "dialect": "openai",
                "sampling": replace(SAMPLING, shaping=Shaping(top_p=0.9), ignore_eos=False),
                "extra": {"chat_template_kwargs": {}},
            },
            "extra.chat_template_kwargs",
        ),
    ],
)
def test_call_of_parts_that_do_not_fit_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(CHAT, **changes)

    assert caught.value.where == where
