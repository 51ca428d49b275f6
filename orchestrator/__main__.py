"""Run the command line: ``python -m orchestrator`` or ``specpilot``."""

import sys

from orchestrator.exit_status import ExitStatus
from orchestrator.interrupts import ended_like_ctrl_c


def main() -> int:
    """Run one command; return its exit status, also where it is ended while it is imported."""
    try:
        with ended_like_ctrl_c():
            from orchestrator import cli  # noqa: PLC0415  imports take a second, which may be ended

            return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return ExitStatus.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
