"""Conduct a study: open it, run the race, decide, register, promote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from orchestrator import compose
from orchestrator.adapters.mlflow_names import STUDY_TAG
from orchestrator.adapters.state import tune_dir
from orchestrator.adapters.study_file import StudyFile
from orchestrator.build_report import (
    change_sentence,
    findings_markdown,
    format_study_verdict,
    study_markdown,
)
from orchestrator.cluster import Cluster, job_tags
from orchestrator.config import StudyConfig, config_to_dict
from orchestrator.core.build_findings import find_builds, summarise_builds
from orchestrator.core.build_race import build_races, expected_boots_of
from orchestrator.core.build_verdict import StudyVerdict, VerdictSettings, decide_builds
from orchestrator.core.builds import arm_names
from orchestrator.core.codec import to_plain
from orchestrator.core.premises import Premises
from orchestrator.core.proof_gates import Proofs
from orchestrator.core.race_state import RaceQuestion
from orchestrator.core.types import Arm, Boot
from orchestrator.core.verdict import Verdict, promotable
from orchestrator.core.wording import set_aside_sentences
from orchestrator.delivery import Delivery, promise_tags
from orchestrator.errors import OrchestratorError, TransientError
from orchestrator.events import Pace, Printer
from orchestrator.incumbent import (
    ARM_TAG,
    PREMISES_TAG,
    comparable_champion,
    incumbent_arm,
    incumbent_tag,
    with_incumbent,
)
from orchestrator.journal import Journal, StudyState
from orchestrator.ports import Registry, Tracker, Version
from orchestrator.prepare import Prepared, premises_by_build
from orchestrator.promotion_record import CHALLENGER, GATE_PREFIX, GATE_REASON_PREFIX
from orchestrator.race_searcher import StudyPlan
from orchestrator.report import (
    format_live_table,
    format_plan,
    format_results_table,
)
from orchestrator.resume import asked, take_over
from orchestrator.stopping import Stop
from orchestrator.study import RaceResult, run_race

TRACKER_S = 60.0
"""Longest wait at the verdict for a tracker that is away, as while it is restarted."""
PROMOTION_S = 60.0
"""Guess of a promotion's duration beyond one boot, for the time left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """A study under way: what it asks, where it runs and where it writes."""

    prepared: Prepared
    cluster: Cluster
    study_id: str
    run_id: str
    journal: Journal
    premises: Mapping[str, Premises]
    """By engine build."""
    champion: Version | None
    tracker: Tracker
    registry: Registry
    delivery: Delivery
    printer: Printer

    @property
    def config(self) -> StudyConfig:
        """The study's configuration."""
        return self.prepared.config

    @property
    def incumbent(self) -> Arm | None:
        """What serves in production by the registry's word."""
        return incumbent_arm(self.champion)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The space, the incumbent included."""
        return with_incumbent(self.prepared.arms, self.incumbent)

    @property
    def question(self) -> RaceQuestion:
        """What the study asks."""
        config = self.config
        return RaceQuestion(
            arms=self.arms,
            incumbent=self.incumbent,
            weights=config.weights(),
            board=config.board(),
        )

    def race(self, stop: Stop) -> RaceResult:
        """Run all boots of the race.

        Raises:
            StudyStopped: Somebody wanted it to end first.
        """
        config, race = self.config, compose.race_settings(self.config)
        demands, races = compose.proof_demands(config), build_races(self.question, race)
        num_nodes = self.cluster.num_trial_nodes
        plan = StudyPlan(
            study_id=self.study_id,
            question=self.question,
            race=race,
            expected_boot_s=compose.seconds_per_boot(config),
            slot_token=config.node.slot_token,
            num_nodes=num_nodes,
            demands=demands,
            storage_path=tune_dir(),
            earlier=self.journal.state.race,
        )
        pace = Pace(
            num_expected=expected_boots_of(races) + len(races) * demands.num_boots,
            num_parallel=num_nodes,
            guess_boot_s=compose.seconds_per_boot(config),
            fixed_s=PROMOTION_S + config.engine.expected_boot_s,
        )
        context = compose.TrialContext(
            config=config,
            workload=self.prepared.workload,
            proof_workload=self.prepared.proof_workload,
            study_id=self.study_id,
        )
        factory, table = compose.trial_factory(context), partial(_live_table, self)
        return run_race(plan, factory, self.printer, pace, table, self.journal.keep, stop)

    def conclude(self, raced: RaceResult) -> bool:
        """Decide, store the verdict, and promote if it allows; return whether it was promoted.

        The verdict is told and kept before the tracker is asked for anything.

        Raises:
            TransientError: The tracker does not take it; a new driver finishes.
        """
        boots, config = raced.boots, self.config
        proofs = Proofs(
            boots=raced.proofs,
            lost=raced.lost_proofs,
            raced=boots,
            demands=compose.proof_demands(config),
        )
        found = self._decide(raced, proofs)
        verdict = found.production
        table = format_results_table(summarise_builds(self.question, boots), board=config.board())
        self.printer.lines([*table, *format_study_verdict(found)])
        self.journal.keep_verdict(study_markdown(found))
        self._tell_all()
        boots = tuple(map(self.journal.with_run, boots))
        version = self._register(boots, verdict) if promotable(verdict) else None
        if version is not None:
            self.registry.set_alias(version.model_name, CHALLENGER, version.version)
        self._register_changes(boots, found)
        name = arm_names(self.arms)
        self.tracker.close_study(
            self.run_id,
            succeeded=True,
            tags={
                "verdict": verdict.kind,
                "winner": "none" if verdict.winner is None else name(verdict.winner),
                "step_time": config.objective.step_time,
                **{f"gate.{gate.name}": _gate_text(gate.passed) for gate in verdict.gates},
            },
            metrics=_study_metrics(found),
            artifacts={
                "verdict.md": study_markdown(found),
                "verdict.json": json.dumps(found.to_dict(), indent=1),
                "results.txt": "\n".join(table),
                **self._findings(boots, proofs),
            },
        )
        self.journal.conclude()
        return self._deliver(version)

    def _tell_all(self) -> None:
        """Wait until the tracker has what the trials told.

        What it refuses while it answers is no reason to lose the verdict.

        Raises:
            TransientError: It is away.
        """
        if self.journal.flush(TRACKER_S):
            return
        self.tracker.open_study(self.study_id, self.study_id, {})
        if not self.journal.flush(TRACKER_S):
            self.printer.say("the tracker answers and refuses something of a trial; see its log")

    def _findings(self, boots: Sequence[Boot], proofs: Proofs) -> dict[str, str]:
        """Return what the study found besides a winner, to read and to compute with."""
        confidence = self.config.objective.confidence
        set_aside = proofs.set_aside(self.arms)
        found = find_builds(self.question, boots, confidence=confidence, set_aside=set_aside)
        plain = {build: item.to_dict() for build, item in found.items()}
        record: object = plain if len(plain) > 1 else next(iter(plain.values()))
        return {
            "findings.md": "\n\n".join(
                [*set_aside_sentences(set_aside, None), findings_markdown(found)]
            ),
            "findings.json": json.dumps(record, indent=1),
        }

    def _decide(self, raced: RaceResult, proofs: Proofs) -> StudyVerdict:
        return decide_builds(
            self.question,
            raced.boots,
            settings=VerdictSettings(
                gates=compose.gate_settings(self.config),
                confidence=self.config.objective.confidence,
                premises=self.premises,
            ),
            choices=raced.choices,
            proofs=proofs,
        )

    def _register_changes(self, boots: Sequence[Boot], found: StudyVerdict) -> None:
        """Register the choices of other builds that may serve; a person promotes them."""
        for change in found.changes:
            if change.passes:
                try:
                    version = self._register(boots, change.verdict, claim=change_sentence(change))
                except TransientError as error:
                    self.printer.say(f"{change.arm.key} could not be registered: {error}")
                    continue
                self.printer.say(
                    f"{change.arm.key} is version {version.version}: a change of build is a "
                    f"person's to make, `promote --registered-version {version.version}`"
                )

    def _register(
        self, boots: Sequence[Boot], verdict: Verdict, claim: str | None = None
    ) -> Version:
        """Return the winner's version, with its evidence.

        An earlier driver may have registered it already, and ended before it wrote that down.
        """
        config, winner = self.config, verdict.winner
        assert winner is not None
        name = config.tracking.registered_model
        own = {STUDY_TAG: self.study_id, ARM_TAG: json.dumps(to_plain(winner))}
        if (found := self.registry.find(name, own)) is not None:
            return found
        run_id = next((b.run_id for b in boots if b.arm == winner and b.run_id is not None), None)
        if run_id is None:
            raise TransientError("no boot of the winner was tracked; nothing can be registered")
        spec = compose.engine_spec(config, winner, f"{config.production.name}-{winner.label}")
        tags = {
            **own,
            "specpilot.arm_label": winner.label,
            "specpilot.engine_build": winner.engine_build,
            "specpilot.study_run": self.run_id,
            "specpilot.step_time": config.objective.step_time,
            "specpilot.claim": claim or "".join(verdict.sentences[:1]),
            PREMISES_TAG: json.dumps(self.premises[winner.engine_build].to_dict()),
            **{GATE_PREFIX + gate.name: _gate_text(gate.passed) for gate in verdict.gates},
            **{GATE_REASON_PREFIX + gate.name: gate.reason[:4000] for gate in verdict.gates},
            **incumbent_tag(self.champion),
            **promise_tags(config, winner, boots),
        }
        return self.registry.create_version(name, run_id, spec.to_dict(), tags)

    def _deliver(self, version: Version | None) -> bool:
        """Promote the registered winner, or see to it that production still stands."""
        say = self.printer.say
        if version is None:
            self._restore()
            say("finished; nothing is promoted")
            return False
        if self.config.policy.promote == "never":
            self._restore()
            say(f"finished; version {version.version} waits as {CHALLENGER}: policy.promote=never")
            return False
        if self.config.policy.approval == "manual":
            self._restore()
            say(
                f"finished; version {version.version} waits as {CHALLENGER} for `promote`: "
                "policy.approval=manual"
            )
            return False
        try:
            self.delivery.promote(version)
        except OrchestratorError as error:
            say(f"not promoted: {error}")
            return False
        self.printer.left_s = None
        say(f"finished; {self.tracker.run_url(self.run_id)}")
        return True

    def _restore(self) -> None:
        """Declare the champion again where Serve has lost it, as after a lost head node."""
        try:
            if self.champion is None or self.delivery.serves(self.champion):
                return
            self.printer.say(f"production does not serve its champion, {self.champion.version}")
            self.delivery.reapply(self.champion)
        except OrchestratorError as error:
            self.printer.say(f"the champion cannot be brought back: {error}")


def open_study(
    prepared: Prepared,
    cluster: Cluster,
    tracker: Tracker,
    delivery: Delivery,
    file: StudyFile,
    earlier: StudyState | None,
) -> Conduct:
    """Open the study's run, or take over that of an earlier driver, and say what it will do.

    Raises:
        ConfigError: What serves in production cannot be compared with any arm of the study, or the
            tracker does not know a study to go on with.
    """
    config, printer, registry = prepared.config, delivery.printer, delivery.registry
    by_build = premises_by_build(prepared)
    champion = comparable_champion(registry, config, by_build)
    study_id = file.study_id
    if earlier is not None:
        take_over(earlier, tracker)
    params = {
        **config_to_dict(config),
        "study_id": study_id,
        "fingerprint": prepared.study_id,
        "premises": by_build[config.engine.build].to_dict(),
        **job_tags(),
    }
    for build in config.engine.build_names[1:]:
        params[f"premises_{build}"] = by_build[build].to_dict()
    run_id = tracker.open_study(study_id, study_id, params)
    asks = asked(prepared, by_build, incumbent_arm(champion))
    if earlier is None:
        state = StudyState(study_id=study_id, run_id=run_id, asks=asks)
    else:
        state = replace(earlier, asks=asks)  # with its budget, which may have been raised
    conduct = Conduct(
        prepared=prepared,
        cluster=cluster,
        study_id=study_id,
        run_id=run_id,
        journal=Journal(file, state, tracker, printer.say),
        premises=by_build,
        champion=champion,
        tracker=tracker,
        registry=registry,
        delivery=delivery,
        printer=printer,
    )
    conduct.journal.keep(conduct.journal.state.race)
    conduct.journal.start()
    plan = format_plan(
        conduct.arms,
        weights=config.weights(),
        board=config.board(),
        incumbent=conduct.incumbent,
        settings=compose.race_settings(config),
        seconds_per_boot=compose.seconds_per_boot(config),
        proof=compose.proof_demands(config),
        num_nodes=cluster.num_trial_nodes,
    )
    printer.lines([f"study {study_id}", f"results: {tracker.run_url(conduct.run_id)}", *plan])
    return conduct


def _live_table(conduct: Conduct, boots: Sequence[Boot]) -> list[str]:
    return format_live_table(
        summarise_builds(conduct.question, boots), board=conduct.config.board()
    )


def _study_metrics(found: StudyVerdict) -> dict[str, float]:
    """Return the objective by arm, for the tracking UI."""
    ranked = [item.summary for verdict in found.verdicts.values() for item in verdict.ranking]
    name = arm_names(item.arm for item in ranked)
    return {
        f"objective_s/{name(item.arm)}": item.objective_s
        for item in ranked
        if item.objective_s is not None
    }


def _gate_text(passed: bool | None) -> str:
    return "not shown" if passed is None else "passed" if passed else "failed"
