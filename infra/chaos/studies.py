"""Studies whose parts die at random moments, on a local cluster, as `make chaos` runs them.

Production streams to clients on the first node all the time; trials run on the second one. What
came of each study is one line of a file, so that a table can be made of several runs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from subprocess import CalledProcessError

from infra.chaos.disk import SmallDisk
from infra.chaos.faults import ASKED, STUDY_NODE, Ground, Kind, Striker, draw
from infra.chaos.memory import MemoryGroup
from infra.chaos.namespace import Namespace
from infra.chaos.promotion import STAND_IN
from infra.chaos.site import Site
from infra.chaos.study_run import StudyRecord, StudyRun
from infra.demo import local_settings
from infra.local.cluster import NODE_ADDRESSES, LocalCluster, Ports
from orchestrator.config import load_config
from orchestrator.core.codec import from_plain
from orchestrator.exit_status import ExitStatus
from orchestrator.interrupts import ended_like_ctrl_c, undisturbed

STUDY = Path("conf/study/demo.yaml")
FAST = (
    "search.num_speculative_tokens=[7]",
    "search.draft_sample_method=[probabilistic]",
    "search.rejection_sample_method=[block]",
    "search.max_boots=4",
    "load.temperatures=[0.7]",
    "load.streams=[1]",
    "load.block_s=1",
    "load.blocks_per_cell=2",
    "proof.lossless=skipped",
    "proof.canaries=skipped",
    "policy.promote=never",
    "policy.soak_s=0",
    "production.verify_requests=1",
)
LENGTH_S = {STAND_IN: 45.0}
"""Usual length of such a study by its engine, over which the faults are spread."""
SILENCE_S = 60.0
"""Of the log of the stand-in, which is up within seconds, until a boot counts as stalled."""
REAL_LENGTH_S = 240.0
STREAMS = 2


def main() -> int:
    """Run the studies that are asked for; return 1 when one of all in the file is not right."""
    args = _arguments()
    results: Path = args.results
    results.parent.mkdir(parents=True, exist_ok=True)
    done = {record.seed for record in read(results)}
    seeds = [seed for seed in range(args.first, args.first + args.studies) if seed not in done]
    left: list[str] = []
    try:
        if seeds:
            with ended_like_ctrl_c(in_background=True), _ground(args) as ground:
                left = _run(seeds, args, ground, results)
    except KeyboardInterrupt:
        print(f"interrupted; what is done stands in {results}, and the same command goes on")
        return ExitStatus.INTERRUPTED
    records = read(results)
    print("\n".join(table(records, left)))
    return 0 if all(record.is_right for record in records) and not left else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.chaos.studies", description=__doc__)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument(
        "--launcher", default=STAND_IN, help="serve_apps.cpu.launch: the real engine"
    )
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in Kind], default=[])
    parser.add_argument("--state-dir", type=Path, default=Path(".specpilot/chaos-studies"))
    parser.add_argument("--results", type=Path, default=Path(".specpilot/chaos-studies.jsonl"))
    return parser.parse_args()


def _run(
    seeds: Sequence[int], args: argparse.Namespace, ground: Ground, results: Path
) -> list[str]:
    """Run the studies of some seeds; return the processes that could not be ended."""
    cluster = LocalCluster(
        state_dir=args.state_dir.resolve(),
        ports=Ports(),
        num_nodes=1,
        addresses=NODE_ADDRESSES if ground.network is None else ground.network.addresses,
        prefixes={STUDY_NODE: ground.prefix} if ground.prefix else {},
    )
    try:
        cluster.start()
        settings = [f"engine.launcher={args.launcher}", *FAST]
        if args.launcher == STAND_IN:
            settings.append(f"engine.boot_silence_s={SILENCE_S:g}")
        settings += local_settings(cluster, load_config(STUDY, settings))
        site = Site(cluster=cluster, study=STUDY, settings=settings)
        _serve(site)
        striker = Striker(site, ground)
        striker.start_node()
        kinds = [Kind[name] for name in args.kind] or striker.kinds
        for seed in seeds:
            rng = random.Random(f"chaos/{seed}")
            faults = draw(rng, kinds, length_s=LENGTH_S.get(args.launcher, REAL_LENGTH_S))
            run = StudyRun(site=site, striker=striker, faults=faults, seed=seed)
            record = run.run(streams=STREAMS)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")
            print(line(record), flush=True)
    finally:
        with undisturbed():
            left = cluster.stop()
    return left


def _serve(site: Site) -> None:
    """Put a version in production; the only node is the head, so that is where it serves."""
    version = site.register()
    status, said = site.command("promote", "--registered-version", str(version.version))
    if status != 0:
        raise SystemExit(f"the version for production does not serve:\n{said}")


@contextmanager
def _ground(args: argparse.Namespace) -> Iterator[Ground]:
    """Yield what can be taken away from the site; a disk and memory only where asked for.

    Raises:
        SystemExit: What was asked for cannot be made.
    """
    asked = {Kind[name] for name in args.kind}
    network = Namespace() if Namespace.is_possible() else None
    if network is None:
        print("no network of its own for the study's node (it needs root and ip): it is not cut")
    memory = MemoryGroup() if Kind.MEMORY in asked else None
    disk = SmallDisk(args.state_dir.resolve()) if Kind.DISK in asked else None
    parts = [part for part in (network, memory, disk) if part is not None]
    with ExitStack() as made:
        for part in parts:
            made.callback(part.remove)
            try:
                part.make()
            except (OSError, CalledProcessError) as error:
                raise SystemExit(f"what is to be taken away cannot be made: {error}") from error
        yield Ground(network=network, memory=memory, disk=disk)


def read(results: Path) -> list[StudyRecord]:
    """Return the studies of a file of results, by seed."""
    if not results.exists():
        return []
    lines = results.read_text(encoding="utf-8").splitlines()
    records = [from_plain(StudyRecord, json.loads(text)) for text in lines]
    return sorted(records, key=lambda record: record.seed)


def line(record: StudyRecord) -> str:
    """Return one study as a line."""
    faults = ", ".join(record.faults) or "nothing was hit"
    bad = "; ".join([*record.wrong, *record.orphans])
    return (
        f"{'ok' if record.is_right else 'WRONG':<6}{record.seed:>4} {record.seconds:>6.0f} s  "
        f"exits {' '.join(map(str, record.starts))}; {faults}{': ' + bad if bad else ''}"
    )


def table(records: Sequence[StudyRecord], left: Sequence[str]) -> list[str]:
    """Return what all studies came to."""
    kills = Counter(fault.rpartition(" at ")[0] for record in records for fault in record.faults)
    counts = {
        "studies": len(records),
        "drivers started": sum(len(record.starts) for record in records),
        "faults": kills.total(),
        **{f"  {kind}": kills[kind] for kind in Kind if kind not in ASKED or kills[kind]},
        "lost blocks": sum(record.lost_blocks for record in records),
        "double blocks": sum(record.double_blocks for record in records),
        "orphans": sum(len(record.orphans) for record in records) + len(left),
        "production requests answered": sum(record.answered for record in records),
        "production requests failed": sum(record.failed for record in records),
        "  while it had no head": sum(record.failed_headless for record in records),
        "studies with something else wrong": sum(bool(record.wrong) for record in records),
    }
    return [f"{name:<36}{number:>8,}" for name, number in counts.items()]


if __name__ == "__main__":
    sys.exit(main())
