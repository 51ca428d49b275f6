"""Hold an environment against the list: `python -m infra.dependencies`, by its own interpreter."""

from __future__ import annotations

import sys

from infra.dependencies.audit import faults, installed, known

if __name__ == "__main__":
    as_of, advisories = known()
    found = faults(installed(), advisories)
    print(*found, sep="\n")
    print(f"{len(found)} of {len(advisories)} advisories apply; the list is of {as_of}")
    sys.exit(1 if found else 0)
