"""False alarms of `watch` per month and the delay until a drift is found, in simulation.

    python -m infra.bench.watch [TABLE...] [--months 400] [--runs 400]

A dedicated simulation of what a look sees, many months at a time, on the tests that `watch` runs.
The study's own simulator has boots and blocks but neither nights nor clients. All seeds are fixed:
the same call prints the same numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom, chi2

from infra.bench.choice import Tables, print_tables
from orchestrator.core.drift import DAY_S, OVER, LevelTest, Looks, MixTest
from orchestrator.core.edetector import CLOSED, Flags, Floats

TABLES = ("false-alarms", "delays", "mix-delays")
SEED = 7
MONTH = 43_200
"""Looks in 30 days at one a minute."""
DAY = 1_440
TOLERANCE = 0.03
"""The default of policy.drift_tolerance."""
SHIFTS = (0.05, 0.10, 0.20)
LOOKED_DAYS = 5
MIX_DAYS = 30
STREAMS: Floats = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
DRAFTS_A_REQUEST = 400.0
"""20 s of answers at 20 steps / s."""
REQUESTS_A_STREAM = 3.0
"""A minute, of one busy stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A deployment: how much is asked of it, and how its minutes differ; spreads are of logs."""

    name: str
    day_streams: float
    """Requests at a time around noon."""
    night_streams: float
    allowance: float = 0.03
    """Of the verdict's intervals."""
    offset: float = 0.0
    """Where production's level lies within the interval: 0 is the centre, 1 is the very edge."""
    text: float = 0.25
    """Spread of the acceptance length between requests."""
    session: float = 0.03
    """Spread of the text that lasts, by the time constant below."""
    session_minutes: float = 45.0
    rhythm: float = 0.02
    """Amplitude over the day, of acceptance; of the step time half of it."""
    boot: float = 0.01
    """Spread of the step time between boots."""
    mix_distance: float = 0.0
    """How far the verdict's weights lie from the world's own, as a share of the tokens."""


WORLDS = (
    World(name="busy", day_streams=8.0, night_streams=1.0),
    World(name="quiet", day_streams=0.6, night_streams=0.02),
    World(name="busy, at the edge", day_streams=8.0, night_streams=1.0, offset=1.0,
          mix_distance=0.1),
    World(name="quiet, at the edge", day_streams=0.6, night_streams=0.02, offset=1.0,
          mix_distance=0.1),
    World(name="busy, long sessions", day_streams=8.0, night_streams=1.0, session=0.04,
          session_minutes=180.0),
)  # fmt: skip


class Production:
    """What each look sees of many deployments of one world, a month each."""

    def __init__(self, world: World, num: int, seed: Sequence[int]) -> None:
        self.world, self.num = world, num
        self.rng = np.random.default_rng(seed)
        self._load = self._normal()
        self._session = self._normal()
        self._step = self._normal()
        self._hot = self._normal()
        self._boot = self._normal()
        self._down = np.zeros(num)
        # Every second deployment lies at the other end of the interval.
        self._side = np.where(np.arange(num) % 2, 1.0, -1.0)

    def look(self, minute: int) -> tuple[Looks, Looks, Floats, Floats]:
        """Return what a minute shows: acceptance, step time, tokens by cell, requests."""
        world, day = self.world, np.cos(2 * np.pi * (minute % DAY) / DAY)
        self._advance()
        noon = (1 - day) / 2
        mean = world.night_streams + (world.day_streams - world.night_streams) * noon
        streams = mean * np.exp(0.4 * self._load - 0.08)
        requests = self.rng.poisson(REQUESTS_A_STREAM * streams).astype(float)
        requests[self._missed()] = 0.0
        drafts = requests * DRAFTS_A_REQUEST
        asked = np.maximum(requests, 1.0)
        edge = world.offset * world.allowance * self._side
        length = (
            edge
            + world.rhythm * day
            + world.session * self._session
            + world.text / np.sqrt(asked) * self._normal()
            + 0.9 / np.sqrt(asked * DRAFTS_A_REQUEST) * self._normal()
        )
        step = (
            edge
            + world.rhythm / 2 * day
            + world.boot * self._boot
            + 0.015 * self._step
            # Requests that run over a look's edge.
            + 0.1 / np.sqrt(asked) * self._normal()
        )
        tokens = self._tokens(streams, requests, weekend=minute // DAY % 7 >= 5)
        return self._looks(length, drafts), self._looks(step, drafts), tokens, requests

    def _looks(self, level: Floats, drafts: Floats) -> Looks:
        return Looks(
            observed=drafts * np.exp(level),
            promised=drafts,
            allowance=np.full(self.num, self.world.allowance),
            drafts=drafts,
            seconds=60.0,
        )

    def _tokens(self, streams: Floats, requests: Floats, *, weekend: bool) -> Floats:
        """Return the tokens by cell, [num, 10]: streams of the minute, two temperatures."""
        at = np.abs(np.log(np.maximum(streams, 0.5))[:, None] - np.log(STREAMS)).argmin(axis=1)
        odds = np.exp(0.6 * self._hot + (0.5 if weekend else 0.0))
        hot = self.rng.binomial(requests.astype(int), odds / (1 + odds))
        found = np.zeros((self.num, 2 * len(STREAMS)))
        rows = np.arange(self.num)
        found[rows, 2 * at] = hot
        found[rows, 2 * at + 1] = requests - hot
        return found * DRAFTS_A_REQUEST * 3.0

    def _missed(self) -> Flags:
        """Return which looks give no evidence: scrapes that fail, outages, engines that restart."""
        rng = self.rng
        self._down = np.maximum(self._down - 1.0, 0.0)
        outage = rng.random(self.num) < 1 / (7 * DAY)
        restart = rng.random(self.num) < 1 / (3 * DAY)
        self._down = np.where(outage, 60.0, np.where(restart, 9.0, self._down))
        self._boot = np.where(restart, self._normal(), self._boot)
        return np.asarray((self._down > 0) | (rng.random(self.num) < 0.02))

    def _advance(self) -> None:
        self._load = self._remembered(self._load, 20.0)
        self._session = self._remembered(self._session, self.world.session_minutes)
        self._step = self._remembered(self._step, 20.0)
        self._hot = self._remembered(self._hot, 600.0)

    def _remembered(self, before: Floats, minutes: float) -> Floats:
        """Return an autoregression of variance 1 with this time constant, one minute on."""
        kept = float(np.exp(-1 / minutes))
        return np.asarray(kept * before + np.sqrt(1 - kept**2) * self._normal())

    def _normal(self) -> Floats:
        return self.rng.standard_normal(self.num)


def weights_of(world: World) -> Floats:
    """Return the world's shares by cell over two weeks, moved by its ``mix_distance``."""
    production = Production(world, 50, [SEED, 1])
    total = sum(production.look(minute)[2].sum(axis=0) for minute in range(14 * DAY))
    weights = np.asarray(total / np.sum(total))
    target = np.zeros_like(weights)
    target[int(weights.argmin())] = 1.0
    # Of the smallest cell's gain everybody else pays its share.
    moved = world.mix_distance / (1 - float(weights.min()))
    return np.asarray((1 - moved) * weights + moved * target)


def false_alarm_lines(num_months: int) -> Iterator[str]:
    """Yield how often deployments without a drift raise an alarm.

    Args:
        num_months: Of each world.
    """
    yield (
        f"False alarms per month of {MONTH:,} looks, over {num_months:,} months of each world, and "
        "in brackets"
    )
    yield "the most that they can be with 95 % confidence (Poisson, one-sided)"
    yield f"{'':22}{'acceptance':>18}{'step time':>18}{'mix':>18}{'all':>18}"
    for index, world in enumerate(WORLDS):
        production = Production(world, num_months, [SEED, 2, index])
        acceptance = LevelTest(num_months, tolerance=TOLERANCE)
        step = LevelTest(num_months, tolerance=TOLERANCE)
        mix = MixTest(num_months, weights_of(world))
        counts = np.zeros(3, dtype=int)
        for minute in range(MONTH):
            lengths, steps, tokens, requests = production.look(minute)
            for place, (test, changed) in enumerate(
                (
                    (acceptance.detector, acceptance.update(lengths)),
                    (step.detector, step.update(steps)),
                    (mix.detector, mix.update(tokens, requests, 60.0)),
                )
            ):
                if changed.any():
                    counts[place] += int((changed & (test.open != CLOSED)).sum())
        cells = [_rate(int(count), num_months) for count in (*counts, counts.sum())]
        yield f"{world.name:22}" + "".join(f"{cell:>18}" for cell in cells)


def delay_lines(num_runs: int) -> Iterator[str]:
    """Yield how long a shift of a level goes unnoticed.

    Args:
        num_runs: Of each shift; it comes at another hour in each, in the third day.
    """
    yield (
        f"Hours until a shift is found, {num_runs:,} runs of each, looked at for {LOOKED_DAYS} "
        "days: median [95 %"
    )
    yield (
        "interval], 90 % by, share found; the level was at the centre of its interval, which "
        "allows 3 %"
    )
    for world in WORLDS[:2]:
        for name in ("acceptance", "step time"):
            for shift in SHIFTS:
                for sign in (-1, 1):
                    found = _level_delays(world, name, float(np.log1p(sign * shift)), num_runs)
                    label = f"{world.name}, {name} {sign * shift:+.0%}"
                    yield f"{label:30}{_delays(found / 60, 'h')}"


def mix_delay_lines(num_runs: int) -> Iterator[str]:
    """Yield how long another mix goes unnoticed.

    Args:
        num_runs: Of each distance.
    """
    yield (
        f"Days until another mix is found, {num_runs:,} runs of each, looked at for "
        f"{MIX_DAYS} days: median [95 % interval],"
    )
    yield "90 % by, share found"
    world = WORLDS[0]
    weights = weights_of(world)
    for moved in (0.3, 0.5, 0.8):
        production = Production(world, num_runs, [SEED, 4, round(100 * moved)])
        test, found = MixTest(num_runs, weights), np.full(num_runs, np.inf)
        target = np.zeros_like(weights)
        target[int(weights.argmin())] = 1.0
        for minute in range(MIX_DAYS * DAY):
            _, _, tokens, requests = production.look(minute)
            total = tokens.sum(axis=1)[:, None]
            changed = test.update((1 - moved) * tokens + moved * total * target, requests, 60.0)
            found = np.where(changed & np.isinf(found), minute + 1.0, found)
            if np.isfinite(found).all():
                break
        yield f"{f'{moved:.0%} of the tokens move':30}{_delays(found * 60 / DAY_S, 'd')}"


def _level_delays(world: World, name: str, shift: float, num_runs: int) -> Floats:
    """Return the looks until each run's shift is found; inf where it is not."""
    seed = [SEED, 3, round(1000 * abs(shift)), int(shift > 0), int(name == "acceptance")]
    production = Production(world, num_runs, seed)
    test = LevelTest(num_runs, tolerance=TOLERANCE)
    begins = 2 * DAY + np.arange(num_runs) * DAY // num_runs
    found, side = np.full(num_runs, np.inf), OVER if shift > 0 else 1 - OVER
    for minute in range((LOOKED_DAYS + 3) * DAY):
        lengths, steps, _, _ = production.look(minute)
        looks = lengths if name == "acceptance" else steps
        shifted = np.where(minute >= begins, np.exp(shift), 1.0)
        changed = test.update(replace(looks, observed=looks.observed * shifted))
        if changed.any():
            hit = changed & (test.detector.open == side) & np.isinf(found) & (minute >= begins)
            found = np.where(hit, minute + 1.0 - begins, found)
            if np.isfinite(found).all():
                break
    return np.where(found <= LOOKED_DAYS * DAY, found, np.inf)


def _rate(alarms: int, months: int) -> str:
    most = float(chi2.ppf(0.95, 2 * (alarms + 1))) / 2
    return f"{alarms / months:.4f} ({most / months:.4f})"


def _delays(found: Floats, unit: str) -> str:
    ordered, num = np.sort(found), len(found)
    low, high = (int(binom.ppf(level, num, 0.5)) for level in (0.025, 0.975))
    middle = (ordered[(num - 1) // 2], ordered[low], ordered[min(high, num - 1)])
    texts = [_time(float(value)) for value in middle]
    late = _time(float(ordered[int(np.ceil(0.9 * num)) - 1]))
    share = float(np.isfinite(found).mean())
    return f"{texts[0]:>8} {unit} [{texts[1]}, {texts[2]}]".ljust(34) + f"{late:>8}{share:>10.1%}"


def _time(value: float) -> str:
    return "later" if np.isinf(value) else f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables that were asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench.watch")
    parser.add_argument("--months", type=int, default=400, help="without a drift, of each world")
    parser.add_argument("--runs", type=int, default=200, help="of each shift")
    print_tables(parser, TABLES, _tables, arguments)


def _tables(options: argparse.Namespace) -> Tables:
    return {
        "false-alarms": lambda: false_alarm_lines(options.months),
        "delays": lambda: delay_lines(options.runs),
        "mix-delays": lambda: mix_delay_lines(options.runs),
    }


if __name__ == "__main__":
    main()
