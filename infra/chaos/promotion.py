"""Promotions under load and under faults on a local cluster, as `make chaos-promotion` runs them.

Sixteen clients stream all the time. Every scenario ends with the same questions: is production one
version, the champion, alone and answering, and what did the clients not get.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.chaos.clients import Clients, Tally
from infra.chaos.looping_target import looping_copy
from infra.chaos.site import Site
from infra.demo import local_settings
from infra.local.cluster import LocalCluster, Ports
from orchestrator.config import load_config
from orchestrator.core.promise import Expected
from orchestrator.core.takeover import PromotionStep
from orchestrator.exit_status import ExitStatus
from orchestrator.interrupts import ended_like_ctrl_c, undisturbed
from orchestrator.ports import Version
from orchestrator.promotion_record import OUTAGE_TAG, REASON_TAG, STEP_TAG

STUDY = Path("conf/study/demo.yaml")
STAND_IN = "serve_apps.engine.fake"
FAST = (
    "load.temperatures=[0.7]",
    "load.streams=[1]",
    "load.block_s=4",
    "policy.soak_s=1",
    "policy.canary_share=0.3",
    "policy.canary_s=4",
    "production.verify_requests=2",
)
NODES = {
    "promoted": 2,
    "bad_challengers": 2,
    "killed_promoters": 2,
    "killed_parts": 2,
    "lost_head": 2,
    "swapped": 1,
}
"""Nodes by scenario."""
STREAMS = 16
_ENDS = (PromotionStep.STOPPED, PromotionStep.RETIRED, PromotionStep.FAILED)
STEPS = tuple(step for step in PromotionStep if step not in _ENDS)
"""After which there is something left to do, in order."""
WHOLE_WITHIN_S = 60.0
STEP_WITHIN_S = 300.0
REAL_SOAK_S = 8.0
"""The real engine on a CPU says some 70 tokens a second, too few in one to be measured."""
QUICK = Expected(mean=0.005, variance=0.01, weight=3.0, degrees_of_freedom=5)
"""Step time, seconds: the stand-in's usual one, and one that no real engine on a CPU reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """How a challenger is made that is not to serve."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Knobs of the stand-in."""
    args: Mapping[str, object] = field(default_factory=dict)
    """Of the engine."""
    promised: Expected | None = None
    """Its study's step time."""
    loops: bool = False
    """Whether its target is one that says the same again and again."""


DOES_NOT_START = "does not start"
LOOPS = "answers one token again and again"
BAD = {
    DOES_NOT_START: Bad(env={"SPECPILOT_FAKE_FAIL": "exit"}),
    LOOPS: Bad(env={"SPECPILOT_FAKE_FAIL": "looping_completions"}),
    "is slower than promised": Bad(env={"SPECPILOT_FAKE_STEP_S": "0.03"}, promised=QUICK),
}
REAL_BAD = {
    DOES_NOT_START: Bad(args={"max_model_len": 10_000_000}),  # no model is trained for that
    LOOPS: Bad(loops=True),
    "stumbles in a loop": Bad(args={"override_generation_config": {"repetition_penalty": 0.01}}),
    "is slower than promised": Bad(promised=QUICK),
}
"""The same of the real engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one scenario."""

    scenario: str
    expected: int | None
    champion: int | None
    whole_s: float | None
    """Seconds until production was one version, alone and answering; None: not within the limit."""
    tally: Tally
    may_fail: bool
    """Whether the fault ends streams that were under way: the process that carried them died."""
    note: str
    lacks: str = ""
    """What else must have come of it and did not."""

    @property
    def is_right(self) -> bool:
        """Whether production is what it must be, and clients got what they could."""
        is_served = self.champion is not None and self.whole_s is not None
        is_whole = is_served and self.champion == self.expected
        return is_whole and not self.lacks and (self.may_fail or self.tally.num_bad == 0)

    def line(self) -> str:
        """Return one line of the table."""
        after = "never" if self.whole_s is None else f"{self.whole_s:.0f} s"
        return (
            f"{'ok' if self.is_right else 'WRONG':<6}{self.scenario:<52}"
            f"champion v{self.champion}, whole after {after:<7} {self.tally.words()}"
            f"{': ' + self.note if self.note else ''}{'; ' + self.lacks if self.lacks else ''}"
        )


class Scenarios:
    """The scenarios on one site; each leaves a champion that serves.

    Args:
        site: Where.
        streams: Of the clients.
        pause_s: Of each stream between two requests.
        steps: After which something is killed.
    """

    def __init__(
        self, site: Site, *, streams: int, pause_s: float, steps: Sequence[PromotionStep]
    ) -> None:
        self._site = site
        self._streams = streams
        self._pause_s = pause_s
        self._steps = steps

    @property
    def _bad(self) -> Mapping[str, Bad]:
        return BAD if self._site.config.engine.launcher == STAND_IN else REAL_BAD

    def _register(self, bad: Bad) -> tuple[Version, Sequence[str]]:
        """Return a bad challenger, and what its study has beside the site's settings."""
        settings: list[str] = []
        if bad.loops:
            target = self._site.cluster.state_dir / "looping-target"
            looping_copy(Path(self._site.config.target.path), target)
            settings.append(f"target.path={target}")
        version = self._site.register(
            bad.env, args=bad.args, step_time=bad.promised, settings=settings
        )
        return version, settings

    @contextmanager
    def _clients(self) -> Iterator[Tally]:
        model = self._site.config.engine.served_model_name
        url = self._site.cluster.production_url
        with Clients(url, model, streams=self._streams, pause_s=self._pause_s) as tally:
            yield tally

    def first(self) -> None:
        """Promote a first version, before there are clients."""
        status, said = self._promote(self._site.register())
        if status != 0:
            raise SystemExit(f"the first version does not serve:\n{said}")

    def promoted(self) -> Iterator[Row]:
        """Promote, and go back, while all clients stream."""
        new = self._site.register()
        yield self._row("promotion", new.version, lambda: self._promote(new))
        before = self._site.champion()
        old = self._site.register()
        yield self._row("promotion again", old.version, lambda: self._promote(old))
        yield self._row("rollback", before, lambda: self._site.command("rollback"))

    def bad_challengers(self) -> Iterator[Row]:
        """Promote what cannot serve: the old version must, and the reason must be there."""
        for fault, how in self._bad.items():
            champion, (bad, more) = self._site.champion(), self._register(how)
            row = self._row(f"challenger {fault}", champion, lambda: self._promote(bad, *more))  # noqa: B023  called at once
            yield self._with_reason(row, bad)
        champion, bad = self._site.champion(), self._site.register()

        def dies() -> tuple[int, str]:
            process = self._site.begin("promote", "--registered-version", str(bad.version))
            self._wait_step(process, bad, PromotionStep.SOAKED)
            time.sleep(2)
            self._site.kill_engine(bad.version)
            return process.wait(), ""

        row = self._row("challenger dies in the canary", champion, dies, may_fail=True)
        yield self._with_reason(row, bad)

    def killed_promoters(self) -> Iterator[Row]:
        """SIGKILL the promoter after each step; the same command again must finish it."""
        for step in self._steps:
            new = self._site.register()

            def killed(step: PromotionStep = step, new: Version = new) -> tuple[int, str]:
                process = self._site.begin("promote", "--registered-version", str(new.version))
                self._wait_step(process, new, step)
                process.send_signal(signal.SIGKILL)
                process.wait()
                return self._promote(new)

            yield self._row(f"promoter killed after '{step}'", new.version, killed)

    def killed_parts(self) -> Iterator[Row]:
        """SIGKILL the router and the engine that serves, after each step of a promotion."""
        for part in ("router", "engine"):
            for step in self._steps:
                new, old = self._site.register(), self._site.champion()
                assert old is not None

                def killed(
                    part: str = part, step: PromotionStep = step, new: Version = new, old: int = old
                ) -> tuple[int, str]:
                    process = self._site.begin("promote", "--registered-version", str(new.version))
                    self._wait_step(process, new, step)
                    if part == "router":
                        self._site.kill_router()
                    else:
                        self._site.kill_engine(old)
                    said, _ = process.communicate()
                    return process.returncode, said

                name = f"{part} killed after '{step}'"
                yield self._row(name, None, killed, may_fail=True, accepts={new.version, old})

    def lost_head(self) -> Iterator[Row]:
        """Lose Ray with all that serves, start an empty one, and bring the champion back."""

        def lost() -> tuple[int, str]:
            self._site.cluster.restart_ray()
            return self._site.command("sync")

        champion = self._site.champion()
        yield self._row("head lost, and 'sync'", champion, lost, may_fail=True)

    def swapped(self) -> Iterator[Row]:
        """Promote on the only board, with an outage, and then what cannot start there."""
        new = self._site.register()
        champion = self._site.champion()
        yield self._row("swap without leave", champion, lambda: self._promote(new))
        row = self._row("swap", new.version, lambda: self._swap(new), may_fail=True)
        yield self._with_outage(row, new)
        bad, _ = self._register(self._bad[DOES_NOT_START])
        name = "swap to what does not start"
        row = self._row(name, new.version, lambda: self._swap(bad), may_fail=True)
        yield self._with_outage(self._with_reason(row, bad), bad)

    def _promote(self, version: Version, *more: str) -> tuple[int, str]:
        return self._site.command("promote", "--registered-version", str(version.version), *more)

    def _swap(self, version: Version) -> tuple[int, str]:
        return self._promote(version, "--allow-outage")

    def _wait_step(
        self, process: subprocess.Popen[str], version: Version, step: PromotionStep
    ) -> None:
        """Wait until the step is recorded, or a later one.

        Raises:
            RuntimeError: The promotion ended before, or hangs; it is ended then.
        """
        order: list[PromotionStep] = [*PromotionStep]
        order.remove(PromotionStep.FAILED)
        later = [item.value for item in order[order.index(step) :]]
        deadline = time.monotonic() + STEP_WITHIN_S
        while True:
            has_ended, is_late = process.poll() is not None, time.monotonic() > deadline
            if self._site.step(version) in later:
                return
            if is_late:
                process.kill()
            if is_late or has_ended:
                said, _ = process.communicate()
                last = (said.strip().splitlines() or ["nothing said"])[-1]
                raise RuntimeError(f"version {version.version} does not come to '{step}': {last}")
            time.sleep(0.02)

    def _row(
        self,
        scenario: str,
        expected: int | None,
        act: Callable[[], tuple[int, str]],
        *,
        may_fail: bool = False,
        accepts: frozenset[int] | set[int] = frozenset(),
    ) -> Row:
        with self._clients() as tally:
            time.sleep(1)
            try:
                (status, said), lacks = act(), ""
            except RuntimeError as error:
                status, said, lacks = 1, "", str(error)
            whole_s = self._site.seconds_until_whole(WHOLE_WITHIN_S)
            time.sleep(1)
        champion = self._site.champion()
        if expected is None and champion in accepts:
            expected = champion
        last = (said.strip().splitlines() or [""])[-1] if status else ""
        return Row(
            scenario=scenario,
            expected=expected,
            champion=champion,
            whole_s=whole_s,
            tally=tally,
            may_fail=may_fail,
            note=last[:150],
            lacks=lacks,
        )

    def _with_reason(self, row: Row, version: Version) -> Row:
        found = self._site.registry.by_number(self._site.model, version.version)
        reason = "" if found is None else found.tags.get(REASON_TAG, "")
        is_told = bool(reason) and found is not None and found.tags.get(STEP_TAG) == "failed"
        lacks = row.lacks if is_told else "no failed promotion stands on the version"
        return replace(row, note=reason.partition("\n")[0][:150], lacks=lacks)

    def _with_outage(self, row: Row, version: Version) -> Row:
        found = self._site.registry.by_number(self._site.model, version.version)
        outage_s = None if found is None else found.tags.get(OUTAGE_TAG)
        lacks = row.lacks if outage_s else "no outage stands on the version"
        note = f"outage of {outage_s} s{'; ' + row.note if row.note else ''}"
        return replace(row, note=note[:150], lacks=lacks)


def _run(
    names: Sequence[str], num_nodes: int, args: argparse.Namespace, rows: list[Row]
) -> list[str]:
    """Run scenarios on one cluster; return the processes that could not be ended."""
    cluster = LocalCluster(
        state_dir=args.state_dir.resolve() / f"nodes-{num_nodes}",
        ports=Ports(),
        num_nodes=num_nodes,
    )
    try:
        cluster.start()
        settings = [f"engine.launcher={args.launcher}", *FAST]
        if args.launcher != STAND_IN:
            settings.append(f"policy.soak_s={REAL_SOAK_S:g}")
        settings += local_settings(cluster, load_config(STUDY, settings))
        scenarios = Scenarios(
            Site(cluster=cluster, study=STUDY, settings=settings),
            streams=args.streams,
            pause_s=args.pause_s,
            steps=[step for step in STEPS if not args.step or step in args.step],
        )
        scenarios.first()
        for name in names:
            for row in getattr(scenarios, name)():
                rows.append(row)
                print(row.line(), flush=True)
    finally:
        with undisturbed():
            left = cluster.stop()
    return left


def main() -> int:
    """Run the scenarios that are asked for; return 1 when one of them is not right."""
    parser = argparse.ArgumentParser(prog="python -m infra.chaos.promotion", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(NODES)}")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--pause-s", type=float, default=0.0, help="of each, between two requests")
    parser.add_argument("--step", action="append", choices=STEPS, help="kill only after this one")
    parser.add_argument(
        "--launcher", default=STAND_IN, help="serve_apps.cpu.launch: the real engine"
    )
    parser.add_argument("--state-dir", type=Path, default=Path(".specpilot/chaos"))
    args = parser.parse_args()
    wanted = args.scenarios or list(NODES)
    if unknown := sorted({*wanted} - {*NODES}):
        parser.error(f"no such scenario: {unknown[0]}")
    rows: list[Row] = []
    left: list[str] = []
    try:
        with ended_like_ctrl_c(in_background=True):
            for num_nodes in sorted({NODES[name] for name in wanted}, reverse=True):
                names = [name for name in wanted if NODES[name] == num_nodes]
                left += _run(names, num_nodes, args, rows)
    except KeyboardInterrupt:
        print(f"interrupted after {len(rows)} scenarios")
        return ExitStatus.INTERRUPTED
    wrong = sum(not row.is_right for row in rows)
    without_kill = [row for row in rows if not row.may_fail]
    bad = sum(row.tally.num_bad for row in without_kill)
    print(
        f"{len(rows)} scenarios under {args.streams} streams, {wrong} not right; "
        f"{sum(row.tally.answered.total() for row in rows)} requests answered, {bad} not well "
        f"where nothing that serves was killed; {len(left)} processes left"
    )
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
