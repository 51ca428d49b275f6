from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from serve_apps.engine.fake.chain import Chain
from serve_apps.engine.fake.exposition import exposition, resolved_config
from serve_apps.engine.fake.knobs import Answers, Asked, Fail, Knobs, parse_command
from serve_apps.engine.fake.simulator import Request, Simulator, acceptance

_QUICK: dict[str, Any] = {"step_s": 0.0, "step_per_draft_s": 0.0, "step_per_stream_s": 0.0}


def _asked(**changes: Any) -> Asked:
    plain: dict[str, Any] = {
        "model": "/m",
        "host": "127.0.0.1",
        "port": 1,
        "names": ("served",),
        "max_model_len": 8192,
        "max_num_seqs": 4,
        "seed": 0,
        "speculative_config": None,
    }
    return Asked(**{**plain, **changes})


def _request(**changes: Any) -> Request:
    plain: dict[str, Any] = {
        "prompt": (3,),
        "max_tokens": 100,
        "temperature": 1.0,
        "ignore_eos": True,
        "seed": 1,
    }
    return Request(**{**plain, **changes})


def _simulator(speculation: dict[str, Any] | None, **knobs: Any) -> Simulator:
    return Simulator(_asked(), Knobs(**_QUICK, prefill_per_token_s=0.0, **knobs), speculation)


def _run(simulator: Simulator, *requests: Request) -> list[list[int]]:
    async def one(request: Request) -> list[int]:
        return [token async for step in simulator.generate(request) for token in step.tokens]

    async def every() -> list[list[int]]:
        return list(await asyncio.gather(*map(one, requests)))

    return asyncio.run(every())


def test_acceptance_knob_is_met_as_unconditional_rates() -> None:
    simulator = _simulator({"num_speculative_tokens": 3}, acceptance=(0.8, 0.5, 0.2))
    _run(simulator, *[_request(seed=seed, max_tokens=2000) for seed in range(4)])
    drafts = simulator.counts["drafts"]
    rates = [accepted / drafts for accepted in simulator.accepted_by_position]
    assert rates == pytest.approx([0.8, 0.5, 0.2], abs=0.03)


def test_counters_agree_with_each_other_and_with_the_tokens() -> None:
    simulator = _simulator({"num_speculative_tokens": 4})
    answers = _run(simulator, *[_request(seed=seed) for seed in range(6)])
    counts = simulator.counts
    assert [len(answer) for answer in answers] == [100] * 6
    assert counts["generation_tokens"] == 600
    assert sum(simulator.accepted_by_position) == counts["accepted_tokens"]
    # Every step emits one token of its own and the accepted ones. The first step of a request
    # has no draft, nor has a last step with room for one token only.
    drafted = counts["accepted_tokens"] + counts["drafts"]
    assert drafted + 6 <= 600 <= drafted + 12
    assert simulator.finished == {"length": 6}


def test_same_seed_same_text_other_seed_other_text() -> None:
    simulator = _simulator(None)
    first, same, other = _run(simulator, _request(), _request(), _request(seed=2))
    assert first == same
    assert first != other


def test_tokens_of_a_seed_are_the_target_s_whatever_the_engine_is() -> None:
    plain = Simulator(_asked(seed=1), Knobs(**_QUICK), None)
    other = Simulator(_asked(seed=2), Knobs(**_QUICK, seed=3), {"num_speculative_tokens": 4})
    for temperature in (0.0, 1.0):
        request = _request(temperature=temperature)
        assert _run(plain, request) == _run(other, request)


def test_tokens_are_displaced_in_their_share_and_only_by_speculation() -> None:
    request = _request(max_tokens=4000)
    plain = _run(_simulator(None, displaced=1.0), request)
    assert plain == _run(_simulator(None), request)
    every, some = (
        _run(_simulator({"num_speculative_tokens": 4}, displaced=share), request)[0]
        for share in (1.0, 0.25)
    )
    for tokens, share in ((every, 1.0), (some, 0.25)):
        chain = Chain()
        before = [*request.prompt, *tokens]
        elsewhere = [
            token == chain.displaced(previous, place)
            for place, (previous, token) in enumerate(pairwise(before), start=1)
        ]
        # A lossless token is the one of that rank now and then.
        assert sum(elsewhere) / len(elsewhere) == pytest.approx(share, abs=0.05)


def test_stop_ends_an_answer_unless_eos_is_ignored() -> None:
    simulator = _simulator(None, stop_after=37)
    short, full = _run(simulator, _request(ignore_eos=False), _request())
    assert (len(short), len(full)) == (37, 100)
    assert simulator.finished == {"stop": 1, "length": 1}


def test_acceptance_model_follows_the_keys() -> None:
    def first(temperature: float, **config: Any) -> float:
        return acceptance({"num_speculative_tokens": 9, **config}, Knobs(), temperature)[0]

    assert first(1.0) < first(1.0, draft_sample_method="probabilistic") < first(0.0)
    assert first(1.0) < first(1.0, rejection_sample_method="block")
    assert acceptance({"num_speculative_tokens": 9}, Knobs(), 0.0)[8] == 0.0


def test_exposition_has_created_twins_and_no_speculation_without_drafts() -> None:
    asked, knobs = _asked(), Knobs()
    plain = exposition(Simulator(asked, knobs, None), resolved_config(asked, knobs, None))
    assert "spec_decode" not in plain
    config = {"num_speculative_tokens": 2}
    text = exposition(Simulator(asked, knobs, config), resolved_config(asked, knobs, config))
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        for twin in ("total", "created"):
            assert f'vllm:spec_decode_{name}_{twin}{{engine="0",model_name="served"}}' in text
    assert 'per_pos_total{engine="0",model_name="served",position="1"} 0.0' in text


def test_command_of_vllm_is_understood_and_foreign_flags_are_passed_over() -> None:
    flags = ["--served-model-name", "a", "b", "--enforce-eager", "--port", "7", "--max-num", "1"]
    config = ["--speculative-config", '{"num_speculative_tokens": 5}']
    asked = parse_command(["serve", "/m", *flags, *config])
    assert (asked.names, asked.port, asked.num_speculative_tokens) == (("a", "b"), 7, 5)


def test_knobs_from_the_environment() -> None:
    knobs = Knobs.from_env(
        {"SPECPILOT_FAKE_FAIL": "hang", "SPECPILOT_FAKE_ACCEPTANCE": "0.5,0.25", "PATH": "/"}
    )
    assert (knobs.fail, knobs.acceptance) == (Fail.HANG, (0.5, 0.25))
    with pytest.raises(ValueError, match="SPECPILOT_FAKE_FALI"):
        Knobs.from_env({"SPECPILOT_FAKE_FALI": "hang"})


def test_knobs_of_what_is_wrong_with_an_arm() -> None:
    knobs = Knobs.from_env(
        {"SPECPILOT_FAKE_DISPLACED": "0.05", "SPECPILOT_FAKE_ANSWERS": "garbage"}
    )
    assert (knobs.displaced, knobs.answers) == (0.05, Answers.GARBAGE)
    for text in ("-0.1", "1.1", "nan"):
        with pytest.raises(ValueError, match="no share"):
            Knobs.from_env({"SPECPILOT_FAKE_DISPLACED": text})
    with pytest.raises(ValueError, match="wrong"):
        Knobs.from_env({"SPECPILOT_FAKE_ANSWERS": "wrong"})
