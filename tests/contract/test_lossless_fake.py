"""The text test on servers whose distributions are known: right, wrong, and at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lossless_contract import LosslessContract, ask, call, sample, score

from orchestrator.errors import ConfigError, MeasurementError, TransientError
from orchestrator.fakes.openai import Act, Script, SseServer, failure, refused, serving
from orchestrator.fakes.openai.markov import MODEL, MarkovModel, MarkovSettings, markov_server
from orchestrator.load import scoring
from orchestrator.load.scoring import TokenServer
from orchestrator.load.workload import Workload, load_workload
from orchestrator.lossless import FEW_RANKS, NO_FLOOR, SAME_SERVER, TextOutcome, run_text_test
from orchestrator.lossless_answers import TextTest
from orchestrator.lossless_greedy import run_greedy_test

RIGHT = MarkovSettings()


@pytest.fixture
def workload(workload_file: Path) -> Workload:
    return load_workload(workload_file)


@contextmanager
def served(settings: MarkovSettings, name: str = "the arm") -> Iterator[TokenServer]:
    with serving(markov_server(settings)) as server:
        yield TokenServer(base_url=server.url, model=MODEL, name=name)


def outcome_of(
    workload: Workload,
    *,
    arm: MarkovSettings = RIGHT,
    control: MarkovSettings = RIGHT,
    **changes: Any,
) -> TextOutcome:
    asked = {"seed": 5, "token_budget": 4_000, "max_tokens": 100, "wait_s": 0.01} | changes
    test = TextTest(workload=workload, **asked)
    with served(arm) as sampler, served(control, "the control") as scorer:
        return run_text_test(sampler, scorer, test)


class TestFakeServer(LosslessContract):
    @pytest.fixture
    def workload(self, workload_file: Path) -> Workload:
        return load_workload(workload_file)

    @pytest.fixture
    def server(self) -> Iterator[TokenServer]:
        with served(RIGHT) as server:
            yield server


@pytest.mark.parametrize(
    ("arm", "control"),
    [
        (MarkovSettings(temperature_factor=0.9), RIGHT),
        (MarkovSettings(temperature_factor=1.1), RIGHT),
        (MarkovSettings(displaced=0.1), RIGHT),
        (MarkovSettings(top_k=20), RIGHT),
        (RIGHT, MarkovSettings(scorer_temperature=1.1)),
        (RIGHT, MarkovSettings(scorer_offset=-0.1)),
        (RIGHT, MarkovSettings(seed=1)),
    ],
    ids=["cold", "hot", "displaced", "top_k", "scorer_hot", "scorer_offset", "other_target"],
)
def test_wrong_distribution_is_rejected(
    workload: Workload, arm: MarkovSettings, control: MarkovSettings
) -> None:
    outcome = outcome_of(workload, arm=arm, control=control)

    assert outcome.result.kind == "rejected"
    assert outcome.result.p_value <= 0.001


def test_displaced_tokens_are_found_where_they_went_and_about_as_many(workload: Workload) -> None:
    outcome = outcome_of(workload, arm=MarkovSettings(displaced=0.1), token_budget=4_000)

    assert outcome.result.where.startswith("rank_5-16: more than expected")
    assert outcome.result.displacement == pytest.approx(0.09, abs=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_right_server_is_not_rejected_whatever_the_seed(workload: Workload, seed: int) -> None:
    outcome = outcome_of(workload, seed=seed, token_budget=2_000)

    assert outcome.result.kind == "cannot_tell"


def test_test_ends_as_soon_as_it_knows(workload: Workload) -> None:
    wrong = outcome_of(workload, arm=MarkovSettings(top_k=5), token_budget=100_000)
    easy = outcome_of(
        workload,
        token_budget=100_000,
        judging=replace(TextTest(workload=workload, seed=0).judging, displacement=0.1),
    )

    assert wrong.result.kind == "rejected"
    assert wrong.result.num_tokens < 2_000
    assert easy.result.kind == "passed"
    assert easy.result.num_tokens < 5_000
    assert easy.result.seen is not None
    assert easy.result.seen <= 0.1


def test_same_seed_gives_the_same_outcome_and_another_one_another(workload: Workload) -> None:
    first, again, other = (outcome_of(workload, seed=seed, token_budget=400) for seed in (1, 1, 2))

    assert first == again
    assert first.result.where != other.result.where


def test_looks_come_after_every_batch_and_batches_grow(workload: Workload) -> None:
    looks: list[int] = []
    with served(RIGHT) as server:
        run_text_test(
            server,
            server,
            TextTest(workload=workload, seed=1, token_budget=2_000, max_tokens=20, num_streams=4),
            on_look=lambda _whose, look: looks.append(look.num_tokens),
        )

    steps = [b - a for a, b in zip([0, *looks], looks, strict=False)]
    assert steps[0] == 4 * 20
    assert looks[-1] == 2_000
    assert max(steps) > 4 * 20
    assert len(looks) < 2_000 / 80


def test_banned_tokens_are_a_difference_in_support(workload: Workload) -> None:
    outcome = outcome_of(workload, control=MarkovSettings(num_banned=4))

    assert outcome.result.kind == "rejected"
    assert outcome.num_impossible > 0
    assert "support" in outcome.result.where
    assert "differ in support" in outcome.result.sentence
    assert "answer to '" in outcome.result.sentence


def test_server_of_few_probabilities_is_used_and_told(workload: Workload) -> None:
    few = MarkovSettings(max_logprobs=20)
    right = outcome_of(workload, control=few, token_budget=2_000)
    wrong = outcome_of(workload, arm=MarkovSettings(temperature_factor=0.9), control=few)

    assert right.num_top == 20
    assert right.result.num_observations.keys() == {
        *("rank_1", "rank_2-4", "rank_5-16", "probability")
    }
    assert FEW_RANKS.format(20) in right.remarks
    assert right.result.kind == "cannot_tell"
    assert wrong.result.kind == "rejected"


def test_arm_that_scores_itself_is_told_and_so_is_a_floor_that_nobody_measured(
    workload: Workload,
) -> None:
    test = TextTest(workload=workload, seed=5, token_budget=500, max_tokens=50)
    with served(RIGHT) as server:
        alone = run_text_test(server, server, test)
        floored = run_text_test(server, server, replace(test, control_tokens=500))

    assert alone.remarks == (SAME_SERVER, NO_FLOOR)
    assert floored.remarks == (SAME_SERVER,)


def test_control_whose_own_tokens_are_displaced_is_no_scale(workload: Workload) -> None:
    outcome = outcome_of(workload, control=MarkovSettings(displaced=0.3), control_tokens=1_000)

    assert outcome.control is not None
    assert outcome.control.result.kind == "rejected"
    assert outcome.result.kind == "cannot_tell"
    assert outcome.num_requests == 0
    assert outcome.result.sentence.startswith("Cannot tell: the control's own tokens")


def test_control_that_scores_something_else_gives_room_and_is_told(workload: Workload) -> None:
    outcome = outcome_of(
        workload,
        control=MarkovSettings(scorer_temperature=1.1),
        control_tokens=500,
        token_budget=1_000,
    )

    assert outcome.control is not None
    assert outcome.control.floor is not None
    assert outcome.control.floor > 0.1
    assert outcome.result.kind == "cannot_tell"
    assert "more than rounding" in " ".join(outcome.remarks)


def test_prompts_that_the_arm_refuses_are_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    long = " ".join(["word"] * 2_000)
    path.write_text(f'{{"id": "short", "prompt": "a b"}}\n{{"id": "long", "prompt": "{long}"}}\n')

    outcome = outcome_of(load_workload(path), token_budget=1_000)

    assert outcome.refused.keys() == {"long"}
    assert "maximum context length" in outcome.refused["long"]
    assert outcome.result.num_tokens >= 1_000


def test_workload_that_the_arm_refuses_ends_the_test(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(f'{{"prompt": "{" ".join(["word"] * 2_000)}"}}\n')

    with pytest.raises(ConfigError, match="maximum context length"):
        outcome_of(load_workload(path))


def test_conversations_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')

    with pytest.raises(ConfigError, match="conversations"):
        TextTest(workload=load_workload(path), seed=0)


def test_answer_that_fills_the_context_is_scored_but_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "full.jsonl"
    path.write_text('{"prompt": "a b c d"}\n')

    outcome = outcome_of(
        load_workload(path), max_tokens=RIGHT.max_model_len - 4, num_streams=2, token_budget=2_000
    )

    assert outcome.num_cut == outcome.num_requests == 2
    assert outcome.result.num_tokens == 2 * (RIGHT.max_model_len - 4 - 1)


def garbled(field: str) -> MarkovSettings:
    """Return a control that loses a field once the text is longer than a first question."""

    def garble(body: dict[str, Any]) -> None:
        choice = body["choices"][0]
        if len(choice.get("prompt_logprobs") or ()) > len(scoring.PROBE):
            choice[field] = None

    return MarkovSettings(garble=garble)


def test_control_without_probabilities_is_refused_before_anything_is_sampled(
    workload: Workload,
) -> None:
    control = MarkovSettings(garble=lambda body: body["choices"][0].pop("prompt_logprobs"))

    with pytest.raises(ConfigError, match="no prompt_logprobs"):
        outcome_of(workload, control=control)


def test_control_that_loses_its_probabilities_ends_the_test(workload: Workload) -> None:
    with pytest.raises(MeasurementError, match="the control: no prompt_logprobs"):
        outcome_of(workload, control=garbled("prompt_logprobs"))


def test_arm_without_token_ids_ends_the_test(workload: Workload) -> None:
    arm = MarkovSettings(garble=lambda body: body["choices"][0].pop("token_ids"))

    with pytest.raises(MeasurementError, match=r"the arm, prompt .*: no token_ids"):
        outcome_of(workload, arm=arm)


def test_target_of_another_vocabulary_is_refused_in_words(workload: Workload) -> None:
    with pytest.raises(MeasurementError, match="out of vocabulary"):
        outcome_of(workload, control=MarkovSettings(vocabulary=70))


@contextmanager
def failing(*faults: Script) -> Iterator[tuple[TokenServer, SseServer]]:
    """Serve the faults one after the other, then right answers."""
    model, left = MarkovModel(), list(faults)
    behaviour = lambda _number, body: left.pop(0) if left else model.answer(body)  # noqa: E731
    with serving(SseServer(behaviour=behaviour)) as server:
        yield TokenServer(base_url=server.url, model=MODEL, name="the arm"), server


@pytest.mark.parametrize(
    "fault",
    [
        refused(503, retry_after="0"),
        refused(429),
        failure(500, "the engine died"),
        Script(parts=(b'{"choices":', Act.RESET), content_type="application/json"),
        Script(parts=(b'{"choices":', Act.CLOSE), content_type="application/json"),
    ],
    ids=["503", "429", "500", "reset", "cut"],
)
def test_request_that_fails_for_a_moment_is_made_again_as_it_was(fault: Script) -> None:
    with failing(fault) as (server, seen):
        found = sample(server, seed=3)
        alone = sample(server, seed=3)

    assert found == alone
    assert seen.bodies[0] == seen.bodies[1]


def test_server_that_never_answers_ends_in_one_line_with_its_name() -> None:
    with (
        failing(*[failure(500, "the engine\ndied")] * 9) as (server, _),
        pytest.raises(TransientError, match=r"^the arm: HTTP 500: the engine died \(5 attempts\)$"),
    ):
        sample(server)


def test_server_that_hangs_is_given_up() -> None:
    hanging = Script(parts=(b"{", Act.HANG), content_type="application/json")
    with (
        failing(*[hanging] * 9) as (server, _),
        pytest.raises(TransientError, match=r"no answer within 0\.05 s"),
    ):
        ask(server, lambda client: client.sample(call(server)), timeout_s=0.05)


@pytest.mark.parametrize("text", [b"<html>", b"[]", b"\xff\xfe"])
def test_answer_that_is_no_completion_is_named(text: bytes) -> None:
    page = Script(parts=(text,), content_type="application/json")
    with failing(page) as (server, _), pytest.raises(MeasurementError, match=r"^the arm: .*JSON"):
        sample(server)


def test_answer_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MAX_ANSWER_BYTES", 1 << 20)
    with served(RIGHT) as server, pytest.raises(MeasurementError, match="more than 1 MiB"):
        score(server, sample(server, max_tokens=900), num_top=100)


def test_refused_key_is_not_shown() -> None:
    key = "sk-planted-0123456789"
    with failing(failure(401, f"the key {key} is wrong")) as (server, _):
        keyed = replace(server, api_key=key)
        with pytest.raises(scoring.Refused, match="401") as caught:
            sample(keyed)

    assert key not in str(caught.value)
    assert key not in repr(keyed)


def test_limit_of_probabilities_that_is_refused_too_is_named() -> None:
    refusal = failure(400, "Requested prompt logprobs of 64, greater than max allowed: 20")
    with failing(refusal, refusal) as (server, _), pytest.raises(ConfigError, match="refuses them"):
        ask(server, lambda client: client.widest_top(64))


def test_greedy_arm_that_leaves_the_choice_is_rejected(workload: Workload) -> None:
    test = TextTest(workload=workload, seed=1, token_budget=3_000, max_tokens=50, temperature=0.0)
    with served(MarkovSettings(displaced=0.02)) as arm, served(RIGHT, "the control") as control:
        outcome = run_greedy_test(arm, control, test)

    assert outcome.result.kind == "rejected"
    assert outcome.result.control.num_disagreements == 0


def test_greedy_arm_passes_with_enough_tokens(workload: Workload) -> None:
    test = TextTest(workload=workload, seed=1, token_budget=25_000, max_tokens=500, temperature=0.0)
    with served(RIGHT) as arm, served(RIGHT, "the control") as control:
        outcome = run_greedy_test(arm, control, test)

    assert outcome.result.kind == "passed"


def test_greedy_arm_needs_a_control_beside_it(workload: Workload) -> None:
    test = TextTest(workload=workload, seed=1, temperature=0.0)
    with served(RIGHT) as arm, pytest.raises(ConfigError, match="compared with"):
        run_greedy_test(arm, arm, test)


def test_greedy_rule_is_for_temperature_0(workload: Workload) -> None:
    test = TextTest(workload=workload, seed=1)
    with served(RIGHT) as arm, pytest.raises(ConfigError, match="not greedy"):
        run_greedy_test(arm, replace(arm, base_url="http://127.0.0.1:1"), test)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"token_budget": 0}, {"control_tokens": -1}, {"max_tokens": 0}, {"num_streams": 0}),
        *({"num_scorers": 0}, {"num_top": 0}, {"temperature": 3.0}, {"timeout_s": 0.0}),
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_setting_out_of_range_is_named(workload: Workload, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"lossless.{next(iter(wrong))}"):
        TextTest(workload=workload, **({"seed": 0} | wrong))
