"""Promotions on the shipped production and registry: fully the new or fully the old."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pytest
from promotion_scene import (
    DEADLINE_S,
    MODEL,
    MuteProduction,
    Scene,
    kept,
    scene_with_champion,
)

from orchestrator.core.promotion import Gate
from orchestrator.core.takeover import PromotionStep
from orchestrator.errors import ConfigError, MeasurementError, PromotionError, TransientError
from orchestrator.fakes.production import FakeProduction
from orchestrator.ports import ProductionState, Served, Version
from orchestrator.promote import Promoted
from orchestrator.promotion_record import (
    CANARY_TAG,
    CHALLENGER,
    CHAMPION,
    OUTAGE_TAG,
    PREVIOUS,
    PROMISE_TAG,
    REASON_TAG,
    SINCE_TAG,
    SOAK_TAG,
    STEP_TAG,
)
from orchestrator.promotion_steps import Measure, Measurement

FAILED_STEP = PromotionStep.FAILED.value


def test_first_promotion_makes_the_challenger_the_champion_that_serves_alone() -> None:
    scene = Scene()
    version = scene.register(7)

    done = scene.promote(version, kept())

    assert done == Promoted(version=1, previous=None, verified_throughput=42.0)
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: None, PREVIOUS: None}
    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_promotion_over_a_champion_shifts_the_traffic_and_then_ends_the_old_engine() -> None:
    scene, version = scene_with_champion()
    begun = len(scene.production.declarations)

    done = scene.promote(version)

    assert done == Promoted(version=2, previous=1, verified_throughput=None)
    assert scene.aliases() == {CHAMPION: 2, CHALLENGER: None, PREVIOUS: 1}
    assert scene.production.declarations[begun:] == [
        (("specpilot-v1", "specpilot-v2"), {"specpilot-v1": 1.0}),
        (("specpilot-v1", "specpilot-v2"), {"specpilot-v1": 0.9, "specpilot-v2": 0.1}),
        (("specpilot-v1", "specpilot-v2"), {"specpilot-v2": 1.0}),
        (("specpilot-v2",), {"specpilot-v2": 1.0}),
    ]


def test_promotion_measures_before_a_client_reaches_the_challenger() -> None:
    scene, version = scene_with_champion()
    seen: list[tuple[set[str], dict[str, float]]] = []

    def measure(on: Version) -> Measurement:
        seen.append(scene.serving())
        return kept()(on)

    scene.promote(version, measure)

    assert seen == [({"specpilot-v1", "specpilot-v2"}, {"specpilot-v1": 1.0})]


def test_clients_are_served_in_every_moment_of_a_promotion() -> None:
    class WatchedProduction(FakeProduction):
        is_watched = False

        def declare(
            self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
        ) -> None:
            super().declare(engines, weights)
            self.ask()

        def state(self) -> ProductionState:
            state = super().state()
            self.ask()
            return state

        def ask(self) -> None:
            if self.is_watched:
                assert self.ask_as_client()["text"]

    production = WatchedProduction()
    scene = Scene(production=production)
    scene.promote(scene.register(3))
    production.is_watched = True

    scene.promote(scene.register(7))

    assert len(production.declarations) == 7


def test_steps_are_recorded_on_the_version_in_their_order() -> None:
    scene, version = scene_with_champion()

    scene.promote(version)

    assert scene.registry.steps == [
        "challenger",
        "booted",
        "verified",
        "measured",
        "soaked",
        "canary",
        "shifted",
        "drained",
        "aliased",
        "retired",
    ]
    assert scene.step(version) == "retired"
    assert len(scene.said) >= 6


def test_promoting_the_champion_again_touches_nothing_and_says_that_it_serves() -> None:
    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    begun, before = len(scene.production.declarations), scene.aliases()

    scene.promote(champion)

    assert scene.said[-1] == "version 1 is the champion and serves already"
    assert len(scene.production.declarations) == begun
    assert scene.aliases() == before


def is_challenger(spec: Mapping[str, object]) -> bool:
    return spec["depth"] == 7


def fail_measure(error: BaseException) -> Measure:
    def measure(_version: Version) -> Measurement:
        raise error

    return measure


FAILURES: list[tuple[str, Callable[[], FakeProduction], BaseException | None, str]] = [
    ("boot", lambda: FakeProduction(fails=is_challenger), None, "specpilot-v2 did not start"),
    ("no answer", lambda: FakeProduction(is_broken=is_challenger), None, "no completion"),
    ("empty", MuteProduction, None, "answer 1 of the verification was empty"),
    ("load", FakeProduction, PromotionError("3 requests failed"), "3 requests failed"),
    ("window", FakeProduction, MeasurementError("too short"), "too short"),
    ("network", FakeProduction, TransientError("reset"), "reset"),
    ("refused", FakeProduction, ConfigError("a", "b", "c"), "a: b; c"),
    ("bug", FakeProduction, ValueError("bug"), "bug"),
]


@pytest.mark.parametrize(
    ("production", "error", "says"),
    [case[1:] for case in FAILURES],
    ids=[case[0] for case in FAILURES],
)
def test_promotion_that_fails_leaves_production_and_aliases_as_they_were(
    production: Callable[[], FakeProduction], error: BaseException | None, says: str
) -> None:
    """F06: production serves the previous version again."""
    scene, version = scene_with_champion(production())
    serving, aliases = scene.serving(), scene.aliases()
    assert serving == ({"specpilot-v1"}, {"specpilot-v1": 1.0})

    with pytest.raises(PromotionError, match=says):
        scene.promote(version, None if error is None else fail_measure(error))

    assert scene.serving() == serving
    assert scene.aliases() == aliases == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}
    assert scene.step(version) == "failed"
    assert scene.production.state().engines == {"specpilot-v1": "RUNNING"}


def test_first_promotion_that_fails_leaves_no_engine_and_no_champion() -> None:
    scene = Scene(production=FakeProduction(fails=is_challenger))
    version = scene.register(7)

    with pytest.raises(PromotionError):
        scene.promote(version)

    assert scene.serving() == (set(), {})
    assert scene.aliases() == {CHAMPION: None, CHALLENGER: 1, PREVIOUS: None}


def test_interrupted_promotion_is_put_back_and_stays_an_interrupt() -> None:
    scene, version = scene_with_champion()

    with pytest.raises(KeyboardInterrupt):
        scene.promote(version, fail_measure(KeyboardInterrupt()))

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases()[CHAMPION] == 1
    assert scene.said[-3:] == [
        "promotion of version 2: it was interrupted; putting production back",
        "version 1 serves alone, as before",
        "again: promote --registered-version 2",
    ]
    assert scene.tag(version, REASON_TAG) == "interrupted"


def test_challenger_that_does_not_come_up_is_waited_for_until_the_deadline_only() -> None:
    scene, version = scene_with_champion(FakeProduction(capacity=1))
    scene.free_boards = lambda: 1  # somebody else takes it
    begun = scene.clock.monotonic()

    with pytest.raises(PromotionError, match=r"DEPLOYING after 300 s"):
        scene.promote(version)

    assert scene.clock.monotonic() - begun == pytest.approx(DEADLINE_S, abs=2.0)


def test_slow_boot_within_the_deadline_is_no_failure() -> None:
    """F12: a seven-minute boot."""
    scene = Scene(production=FakeProduction(polls_to_start=200))

    scene.promote(scene.register(7))

    assert scene.aliases()[CHAMPION] == 1
    assert 190 < scene.clock.monotonic() < DEADLINE_S


@pytest.mark.parametrize("alias", [PREVIOUS, CHAMPION])
def test_registry_that_is_gone_when_the_champion_is_named_undoes_the_shift(alias: str) -> None:
    scene, version = scene_with_champion()
    refusals = iter([True])
    scene.registry.refuses = lambda call, what: (
        (call, what) == ("alias", alias) and next(refusals, False)
    )

    with pytest.raises(PromotionError, match="registry does not answer"):
        scene.promote(version)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}


def test_production_is_put_back_even_if_the_registry_stays_gone() -> None:
    scene, version = scene_with_champion()
    shifted: list[str] = []

    def gone(_call: str, what: str) -> bool:
        if what == "canary":
            shifted.append(what)
        return bool(shifted)

    scene.registry.refuses = gone

    with pytest.raises(PromotionError, match="the registry could not be put back"):
        scene.promote(version)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases()[CHAMPION] == 1


def test_production_that_cannot_be_put_back_is_said_out_loud() -> None:
    class StubbornProduction(FakeProduction):
        num_left = 1

        def declare(
            self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
        ) -> None:
            self.num_left -= 1
            if self.num_left < 0:
                raise TransientError("Serve does not answer")
            super().declare(engines, weights)

    production = StubbornProduction()
    scene = Scene(production=production)
    version = scene.register(7)

    with pytest.raises(PromotionError, match="production could not be put back: Serve does not"):
        scene.promote(version, fail_measure(PromotionError("3 requests failed")))

    assert any("could not be put back" in line for line in scene.said)
    assert scene.aliases()[CHAMPION] is None


def test_version_that_serves_stays_champion_if_the_old_engine_cannot_be_ended() -> None:
    scene, version = scene_with_champion()
    scene.registry.refuses = lambda call, _what: call == "delete"

    done = scene.promote(version)

    assert done.version == 2
    assert scene.aliases()[CHAMPION] == 2
    assert scene.serving()[1] == {"specpilot-v2": 1.0}
    assert any("what was before it is left" in line for line in scene.said)


def test_lost_champion_is_brought_back_from_the_registry_alone() -> None:
    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    scene.production = FakeProduction()

    scene.promoter().reapply(champion)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_lost_champion_that_does_not_come_up_is_an_error() -> None:
    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    scene.production = FakeProduction(fails=lambda _spec: True)

    with pytest.raises(PromotionError, match="did not start"):
        scene.promoter().reapply(champion)


def test_settling_refuses_and_leaves_alone_what_this_model_never_promoted() -> None:
    scene, version = scene_with_champion()
    scene.production.declare({"specpilot-v1": {}, "specpilot-v2": {}}, {"specpilot-v1": 1.0})
    before = scene.serving()

    with pytest.raises(ConfigError, match="specpilot-v2, which is no version"):
        scene.promoter().settle(MODEL)
    with pytest.raises(ConfigError, match="specpilot-v1, specpilot-v2"):
        scene.promoter().settle("another")

    assert scene.serving() == before
    assert scene.step(version) is None


def test_settling_ends_the_engine_of_a_promotion_that_could_not_be_undone() -> None:
    scene, version = scene_with_champion()
    first = scene.registry.by_number(MODEL, 1)
    assert first is not None
    both = {"specpilot-v1": first.config, "specpilot-v2": version.config}
    scene.production.declare(both, {"specpilot-v1": 1.0})
    scene.registry.set_tag(MODEL, version.version, STEP_TAG, FAILED_STEP)

    scene.promoter().settle(MODEL)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def ask(scene: Scene, times: int) -> None:
    """Let clients ask, whatever comes of it."""
    for _ in range(times):
        with contextlib.suppress(TransientError):
            scene.production.ask_as_client()


def in_canary(scene: Scene, do: Callable[[], None]) -> None:
    """Do something at each look at the router's counts while two versions have weights."""
    served = scene.production.served

    def look() -> Mapping[str, Served]:
        if len(scene.serving()[1]) > 1:
            do()
        return served()

    scene.production.served = look  # type: ignore[method-assign]


def test_canary_gives_the_challenger_its_share_and_says_what_became_of_it() -> None:
    scene, version = scene_with_champion()
    in_canary(scene, lambda: ask(scene, 10))

    scene.promote(version)

    assert scene.tag(version, CANARY_TAG) == "30 clients' requests answered, 0 failed"
    assert scene.step(version) == "retired"


def test_canary_ends_when_enough_requests_were_answered() -> None:
    scene, version = scene_with_champion()
    scene.canary_requests, scene.canary_s = 3, 1000.0
    in_canary(scene, lambda: ask(scene, 10))

    scene.promote(version)

    assert scene.tag(version, CANARY_TAG) == "3 clients' requests answered, 0 failed"
    assert scene.clock.monotonic() < 100


def test_canary_of_no_share_shifts_all_at_once() -> None:
    scene, version = scene_with_champion()
    scene.canary_share = 0.0

    scene.promote(version)

    assert scene.tag(version, CANARY_TAG) is None
    assert all(len(weights) < 2 for _, weights in scene.production.declarations)


def break_clients(scene: Scene) -> Callable[[], None]:
    """Let the challenger answer pins and fail clients; three were answered before the canary."""
    ask(scene, 3)

    def do() -> None:
        scene.production.served = lambda: {  # type: ignore[method-assign]
            "specpilot-v1": Served(answered=93),
            "specpilot-v2": Served(answered=9, failed=1),
        }

    return do


CANARY_FAULTS: list[tuple[str, Callable[[Scene], Callable[[], None]], str]] = [
    ("dies", lambda s: lambda: s.production.die("specpilot-v2"), "UNHEALTHY in the canary"),
    ("restarts", lambda s: lambda: s.production.restart("specpilot-v2"), "restarted in the canary"),
    ("fails", break_clients, "1 of 10 clients' requests failed in the canary, 0 of 90"),
]


@pytest.mark.parametrize(
    ("fault", "says"),
    [case[1:] for case in CANARY_FAULTS],
    ids=[case[0] for case in CANARY_FAULTS],
)
def test_challenger_that_fails_in_the_canary_goes_and_the_reason_stays(
    fault: Callable[[Scene], Callable[[], None]], says: str
) -> None:
    scene, version = scene_with_champion()
    in_canary(scene, fault(scene))

    with pytest.raises(PromotionError, match=says):
        scene.promote(version)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}
    assert says in (scene.tag(version, REASON_TAG) or "")


def test_challenger_that_breaks_its_promise_never_meets_a_client() -> None:
    scene, version = scene_with_champion()
    begun = len(scene.production.declarations)
    gate = Gate(name="promise", passed=False, reason="90.0 ms a step, 80.0 promised", required=True)

    with pytest.raises(PromotionError, match=r"does not keep its study's promise: 90\.0 ms"):
        scene.promote(version, lambda _version: Measurement(throughput=9.0, gate=gate))

    weights = [weights for _, weights in scene.production.declarations[begun:]]
    assert all(set(shares) == {"specpilot-v1"} for shares in weights)
    assert scene.tag(version, PROMISE_TAG) == "failed"
    assert "90.0 ms a step" in (scene.tag(version, REASON_TAG) or "")


def test_promise_that_cannot_be_told_keeps_the_challenger_out_where_it_is_required() -> None:
    scene, version = scene_with_champion()
    gate = Gate(name="promise", passed=None, reason="no draft was counted", required=True)

    with pytest.raises(PromotionError, match="no draft was counted"):
        scene.promote(version, lambda _version: Measurement(throughput=9.0, gate=gate))

    assert scene.tag(version, PROMISE_TAG) == "not shown"


def test_challenger_that_does_not_stand_full_concurrency_never_meets_a_client() -> None:
    scene, version = scene_with_champion()
    begun, seen = len(scene.production.declarations), list[int]()
    gate = Gate(name="soak", passed=False, reason="at 16 requests at a time, 2 failed: HTTP 500")

    def soak(on: Version) -> Gate:
        seen.append(on.version)
        return gate

    with pytest.raises(PromotionError, match="does not stand full concurrency: at 16 requests"):
        scene.promoter().promote(version, measure=kept(), soak=soak)

    assert seen == [2]
    weights = [weights for _, weights in scene.production.declarations[begun:]]
    assert all(set(shares) == {"specpilot-v1"} for shares in weights)
    assert scene.tag(version, SOAK_TAG) == "failed"
    # It failed in production and not in its study: it may be tried again.
    scene.promoter().promote(version, measure=kept())
    assert scene.aliases()[CHAMPION] == 2


def test_challenger_whose_answers_are_no_text_is_kept_out() -> None:
    """A12, A13: HTTP 200, fast, and one word again and again."""

    class LoopingProduction(FakeProduction):
        def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
            answer = dict(super().complete(prompt, max_tokens, app))
            return answer | ({"text": "a " * 32} if app == "specpilot-v2" else {})

    scene, version = scene_with_champion(LoopingProduction())

    with pytest.raises(PromotionError, match="in the verification 3 of 3 answers repeat"):
        scene.promote(version)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_promotion_without_a_free_board_is_refused_and_changes_nothing() -> None:
    scene, version = scene_with_champion(FakeProduction(capacity=1))
    begun, before = len(scene.production.declarations), scene.aliases()

    with pytest.raises(ConfigError, match=r"no board is free beside .*--allow-outage"):
        scene.promote(version)

    assert len(scene.production.declarations) == begun
    assert scene.aliases() == before
    assert scene.step(version) is None


def test_first_promotion_without_a_free_board_is_refused() -> None:
    scene = Scene(production=FakeProduction(capacity=0))

    with pytest.raises(ConfigError, match="no board is free; wait"):
        scene.promote(scene.register(7))


def test_version_whose_gate_failed_is_refused() -> None:
    """H08: what must never serve does not, whoever asks."""
    scene, _ = scene_with_champion()
    tags = {"specpilot.gate.not_synthetic": "failed", "specpilot.gate.better": "passed"}
    version = scene.registry.create_version(MODEL, "run-1", {"depth": 9}, tags)

    with pytest.raises(ConfigError, match="gate not_synthetic failed"):
        scene.promote(version)

    assert scene.step(version) is None


def test_swap_says_the_outage_first_and_measures_it() -> None:
    scene, _ = scene_with_champion(FakeProduction(capacity=1, polls_to_start=40))
    tags = {"specpilot.boot_time_s": "40.0"}
    version = scene.registry.create_version(MODEL, "run-1", {"depth": 7}, tags)
    scene.said.clear()
    begun = len(scene.production.declarations)

    done = scene.promoter().promote(version, measure=kept(), allow_outage=True)

    assert "expected outage: 85 s" in scene.said[0]
    assert scene.production.declarations[begun:] == [
        (("specpilot-v1",), {}),
        ((), {}),
        (("specpilot-v3",), {}),
        (("specpilot-v3",), {"specpilot-v3": 1.0}),
        (("specpilot-v3",), {"specpilot-v3": 1.0}),
    ]
    assert done.outage_s == pytest.approx(41, abs=3)
    assert float(scene.tag(version, OUTAGE_TAG) or "0") == pytest.approx(41, abs=3)
    assert scene.aliases() == {CHAMPION: 3, CHALLENGER: 2, PREVIOUS: 1}


def test_swap_that_fails_brings_the_old_version_back_by_itself() -> None:
    """F06: one board, and the promoted version's engine cannot start."""
    production = FakeProduction(capacity=1, fails=is_challenger, polls_to_start=20)
    scene, version = scene_with_champion(production)

    with pytest.raises(PromotionError, match="specpilot-v2 did not start"):
        scene.promoter().promote(version, measure=kept(), allow_outage=True)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.production.state().engines == {"specpilot-v1": "RUNNING"}
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}
    assert float(scene.tag(version, OUTAGE_TAG) or "0") == pytest.approx(41, abs=4)
    assert any("the outage took" in line for line in scene.said)


def test_outage_of_a_version_that_nobody_timed_is_said_to_be_unknown() -> None:
    scene, version = scene_with_champion(FakeProduction(capacity=1))

    scene.promoter().promote(version, measure=kept(), allow_outage=True)

    assert any("outage of unknown length" in line for line in scene.said)


def test_champion_that_does_not_answer_is_replaced_without_asking_for_an_outage() -> None:
    broken: list[object] = []
    scene, version = scene_with_champion(
        FakeProduction(capacity=1, fails=lambda spec: spec["depth"] in broken)
    )
    broken.append(3)

    done = scene.promote(version)

    assert done.outage_s is None
    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})


def test_rollback_goes_to_the_version_before_without_measuring_and_can_be_undone() -> None:
    scene, version = scene_with_champion()
    scene.promote(version)
    waiting = scene.register(5)
    first = scene.registry.by_number(MODEL, 1)
    assert first is not None
    scene.registry.steps.clear()

    done = scene.promoter().promote(
        first, kind="rollback", measure=fail_measure(ValueError("it is not measured"))
    )

    assert (done.version, done.previous) == (1, 2)
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: waiting.version, PREVIOUS: 2}
    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert "canary" not in scene.registry.steps
    assert scene.tag(version, REASON_TAG) == "rolled back to version 1"

    again = scene.registry.by_number(MODEL, 2)
    assert again is not None
    scene.promoter().promote(again, kind="rollback")

    assert scene.aliases() == {CHAMPION: 2, CHALLENGER: waiting.version, PREVIOUS: 1}


def test_champion_says_since_when_it_serves_and_the_old_one_what_replaced_it() -> None:
    scene, version = scene_with_champion()

    scene.promote(version, kept())

    assert scene.tag(version, SINCE_TAG) == "2026-01-01 00:00:32 UTC"
    assert scene.tag(version, REASON_TAG) == "it serves"
    first = scene.registry.by_number(MODEL, 1)
    assert first is not None
    assert first.tags[REASON_TAG] == "replaced by version 2"


def test_drain_waits_for_the_old_versions_answers_and_not_for_ever() -> None:
    scene, version = scene_with_champion()
    scene.production.served = lambda: {  # type: ignore[method-assign]
        "specpilot-v1": Served(under_way=2)
    }

    scene.promote(version)

    assert any("specpilot-v1 still answers 2 requests after 60 s" in line for line in scene.said)
    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})


def test_record_that_somebody_else_wrote_is_named_and_nothing_is_touched() -> None:
    scene, version = scene_with_champion()
    scene.registry.set_tag(MODEL, version.version, "specpilot.promotion", "{}")
    scene.registry.set_tag(MODEL, version.version, STEP_TAG, "booted")
    begun = len(scene.production.declarations)

    with pytest.raises(
        ConfigError,
        match=r"version 2 of 'demo'.*is no record of a promotion",
    ):
        scene.promote(version)

    assert len(scene.production.declarations) == begun


def test_registry_that_goes_silent_as_the_alias_moves_leaves_both_to_the_next_command() -> None:
    """The reply is lost and the change is made: what it says of production must become true."""
    scene, second = scene_with_champion()
    registry = scene.registry
    moved = registry.set_alias
    silent = [False]

    def set_alias(model_name: str, alias: str, version: int) -> None:
        moved(model_name, alias, version)
        if alias == CHAMPION and version == second.version and not silent[0]:
            silent[0] = True
            raise TransientError("the reply is lost")

    looked = registry.by_alias

    def by_alias(model_name: str, alias: str) -> Version | None:
        if silent[0] and alias == CHAMPION:
            raise TransientError("the registry is away")
        return looked(model_name, alias)

    registry.set_alias = set_alias  # type: ignore[method-assign]
    registry.by_alias = by_alias  # type: ignore[method-assign]
    with pytest.raises(PromotionError, match="does not say whether it is the champion"):
        scene.promote(second, kept())
    registry.by_alias = looked  # type: ignore[method-assign]

    scene.promoter().settle(MODEL)

    assert scene.aliases()[CHAMPION] == second.version
    apps, weights = scene.serving()
    assert apps == {"specpilot-v2"}
    assert weights == {"specpilot-v2": 1.0}


@pytest.mark.parametrize("text", ["failed", "Failed", "", "no"])
def test_gate_that_does_not_say_passed_is_none_that_passed(text: str) -> None:
    scene, second = scene_with_champion()
    scene.registry.set_tag(MODEL, second.version, "specpilot.gate.lossless", text)
    again = scene.registry.by_number(MODEL, second.version)
    assert again is not None

    with pytest.raises(ConfigError, match="gate lossless"):
        scene.promote(again, kept())

    assert scene.aliases()[CHAMPION] == 1
