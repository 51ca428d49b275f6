"""Many random inputs for what reads bytes of others; see docs/fuzz.md.

    python -m infra.fuzz [TARGET...] [--inputs 1000000] [--seed 0]

The seed is fixed: the same call makes the same inputs. The exit status is 1 where anything crashed
or was wrong; each fault is printed with the number that makes its input again.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from infra.fuzz.config_files import config_target
from infra.fuzz.counters import counters_target
from infra.fuzz.events import answers_target, bytes_target
from infra.fuzz.files import file_targets
from infra.fuzz.router_app import router_target
from infra.fuzz.router_spec import spec_target
from infra.fuzz.target import HEADER, Target, fuzz

INPUTS = 1_000_000


def targets() -> dict[str, Target]:
    """Return the targets by name."""
    readers = (bytes_target(), answers_target(), counters_target(), config_target())
    found = (*readers, *file_targets(), router_target(), spec_target())
    return {each.name: each for each in found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit status."""
    known = targets()
    parser = argparse.ArgumentParser(prog="python -m infra.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(known)}")
    parser.add_argument(
        "--inputs", type=int, default=INPUTS, help="of each target; fewer of slow ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one makes other inputs")
    options = parser.parse_args(arguments)
    if unknown := set(options.targets) - set(known):
        parser.error(f"no target {sorted(unknown)[0]!r}: there are {', '.join(known)}")
    logging.disable(logging.CRITICAL)  # the router says of each broken engine that it is broken
    print(HEADER, flush=True)
    faults: list[str] = []
    for name in options.targets or known:
        tally = fuzz(known[name], options.inputs // known[name].cost, options.seed)
        print(tally.row, flush=True)
        faults += [f"{name}: {text}" for text in tally.kept]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
