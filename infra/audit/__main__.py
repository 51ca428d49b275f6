"""Audit real engines on a CPU and print what was found.

    python -m infra.audit [--short] [--seeds 5] [--tokens 80000] [--only 0.28.0,probabilistic,block]

Boots each build under each rule pair with every seed, loads it at temperature 1 with concurrent
streams, and judges the records. An arm ends as soon as it is rejected or passed, or when its tokens
are spent. Hours for all of it on two cores; `--short` takes one seed of two arms.

Exit status 1 if an arm is judged otherwise than it must be: 0.28.0 with probabilistic drafts and
standard verification is known to be biased and must be rejected; 0.32.0 with standard verification
and both builds without speculation must not. Verification by blocks is reported as it comes out.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.audit.arms import Arm, Budget, Outcome, audit
from infra.audit.cost import Cost, measure
from infra.audit.engine import Rule, build

OLD, NEW = "0.28.0", "0.32.0"
BIASED: tuple[str, Rule] = (OLD, ("probabilistic", "standard"))
LOSSLESS: tuple[tuple[str, Rule | None], ...] = (
    (NEW, ("probabilistic", "standard")),
    (NEW, ("greedy", "standard")),
    (NEW, None),
)
OPEN: tuple[tuple[str, Rule | None], ...] = (
    (OLD, ("greedy", "standard")),
    (OLD, ("probabilistic", "block")),
    (NEW, ("probabilistic", "block")),
    (OLD, ("greedy", "block")),
    (NEW, ("greedy", "block")),
)
MAX_COST = 0.25
"""Share of throughput that the audit may cost."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit every arm asked for; return the exit status."""
    options = _parser().parse_args(arguments)
    # Else an engine outlives whoever is ended; it has a process group of its own.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    budget = Budget(
        num_tokens=options.tokens,
        seconds=options.seconds,
        streams=options.streams,
        depth=options.depth,
        to_the_end=options.to_the_end,
    )
    print(header(), flush=True)
    wrong = 0
    for arm in arms(options):
        if not arm.build.is_installed:
            print(f"{arm.build.version}: not installed, make engine VERSION={arm.build.version}")
            wrong += 1
            continue
        outcome = audit(arm, budget, log=options.log, keep=options.keep)
        print(row(outcome), flush=True)
        wrong += not is_as_known(outcome)
    if not options.skip_cost:
        wrong += _print_cost(options, budget)
    return 1 if wrong else 0


def arms(options: argparse.Namespace) -> Iterator[Arm]:
    """Return the arms that were asked for, seed by seed."""
    chosen = [BIASED, LOSSLESS[0]] if options.short else [BIASED, *LOSSLESS, *OPEN]
    if options.only:
        chosen = [_one(options.only)]
    for seed in range(
        options.first_seed, options.first_seed + (1 if options.short else options.seeds)
    ):
        for version, rule in chosen:
            yield Arm(build=build(version), rule=rule, seed=seed)


def is_as_known(outcome: Outcome) -> bool:
    """Return whether an arm was judged as it must be; every answer will do for an open one."""
    key = (outcome.arm.build.version, outcome.arm.rule)
    if key == BIASED:
        return outcome.result.kind == "rejected"
    return key not in LOSSLESS or outcome.result.kind != "rejected"


def header() -> str:
    """Return the table's head."""
    return (
        f"{'engine':8}{'rule':26}{'seed':>5}{'tokens':>9}{'rejections':>11}{'p-value':>10}  "
        f"{'verdict':12}{'after':>7}{'min':>6}  evidence"
    )


def row(outcome: Outcome) -> str:
    """Return one arm as a line of the table."""
    arm, result, minutes = outcome.arm, outcome.result, outcome.seconds / 60
    after = "-" if outcome.rejected_after is None else f"{outcome.rejected_after:,}"
    return (
        f"{arm.build.version:8}{arm.name:26}{arm.seed:5d}{result.num_tokens:9,d}"
        f"{outcome.num_rejections:11,d}{result.p_value:10.2g}  "
        f"{result.kind.replace('_', ' '):12}{after:>7}{minutes:6.1f}  {_evidence(outcome)}"
    )


def _evidence(outcome: Outcome) -> str:
    result = outcome.result
    seen = "nothing" if result.seen is None else f"{result.seen:.2%}"
    return result.where if result.kind == "rejected" else f"would have seen {seen}"


def _print_cost(options: argparse.Namespace, budget: Budget) -> int:
    arm = Arm(build=build(NEW), rule=LOSSLESS[0][1], seed=options.first_seed)
    cost = measure(arm, budget, seconds=options.cost_seconds, log=options.log)
    print(cost_line(arm, cost), flush=True)
    return int(cost.throughput > MAX_COST)


def cost_line(arm: Arm, cost: Cost) -> str:
    """Return what the audit costs in one sentence."""
    return (
        f"cost of the audit, {arm.build.version} {arm.name}, both at once: "
        f"{cost.plain.tokens_per_s:.1f} tokens/s without, {cost.audited.tokens_per_s:.1f} with it "
        f"({cost.throughput:.1%} of throughput; at most {MAX_COST:.0%}); CPU "
        f"{cost.plain.cpu_ms_per_token:.1f} and {cost.audited.cpu_ms_per_token:.1f} ms a token "
        f"({cost.cpu:+.1%})"
    )


def _one(text: str) -> tuple[str, Rule | None]:
    words = text.split(",")
    return words[0], (words[1], words[2]) if len(words) == 3 else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infra.audit", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--short", action="store_true", help="one seed of two arms")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", help="VERSION or VERSION,DRAFT,REJECTION: this arm alone")
    parser.add_argument("--tokens", type=int, default=80_000, help="of one arm at most")
    parser.add_argument("--seconds", type=float, default=7200.0, help="of one arm's load at most")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--depth", type=int, default=7, help="draft tokens a step")
    parser.add_argument("--to-the-end", action="store_true", help="spend all tokens of every arm")
    parser.add_argument("--skip-cost", action="store_true")
    parser.add_argument("--cost-seconds", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="folder for the records, else thrown away")
    parser.add_argument("--log", type=Path, default=Path("audit.log"), help="engines' output")
    return parser


if __name__ == "__main__":
    sys.exit(main())
