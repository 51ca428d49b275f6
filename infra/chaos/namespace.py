"""A network of its own for one node on this machine, which can be cut and connected again."""

from __future__ import annotations

import os
import random
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

SUBNET = "10.213.77"
_NUM_PAIRS = 64
"""Pairs of addresses, each a /30 of ``SUBNET``."""


def _free_pair() -> int:
    """Return the number of a pair that this machine has not, by chance: runs begin together."""
    shown = subprocess.run(["ip", "-4", "-oneline", "address"], check=True, capture_output=True)
    used = {word.partition("/")[0] for word in shown.stdout.decode().split()}
    free = [number for number in range(_NUM_PAIRS) if _head(number) not in used]
    if not free:
        raise OSError(f"all addresses of {SUBNET}.0/24 are in use")
    return random.SystemRandom().choice(free)


def _head(number: int) -> str:
    return f"{SUBNET}.{4 * number + 1}"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A Linux network namespace behind a pair of virtual interfaces; needs root and ``ip``."""

    name: str = field(default_factory=lambda: f"sp-{uuid.uuid4().hex[:8]}")
    pair: int = field(default_factory=_free_pair)
    """Number of its pair of addresses."""

    @property
    def addresses(self) -> tuple[str, str]:
        """The one on this side, and its own."""
        return _head(self.pair), f"{SUBNET}.{4 * self.pair + 2}"

    @staticmethod
    def is_possible() -> bool:
        """Whether this user may make one here."""
        try:
            probe = Namespace()
            try:
                probe.make()
            finally:
                probe.remove()
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    @property
    def prefix(self) -> Sequence[str]:
        """Words before a command that is to run in it."""
        # 'ip netns exec' would hide the control groups behind a /sys of its own.
        return "nsenter", f"--net=/run/netns/{self.name}"

    @property
    def _outside(self) -> str:
        return f"{self.name}h"

    def make(self) -> None:
        """Make it, with its addresses on both sides.

        Raises:
            OSError: There is no ``ip``.
            subprocess.CalledProcessError: This user may not, or the addresses are in use.
        """
        if os.geteuid() != 0:
            raise PermissionError("a network namespace needs root")
        inside = f"{self.name}n"
        head, node = self.addresses
        _ip("netns", "add", self.name)
        _ip(
            "link", "add", self._outside, "type", "veth", "peer", "name", inside, "netns", self.name
        )
        _ip("address", "add", f"{head}/30", "dev", self._outside)
        _ip("link", "set", self._outside, "up")
        _ip("-n", self.name, "address", "add", f"{node}/30", "dev", inside)
        _ip("-n", self.name, "link", "set", inside, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Let nothing pass between the node and this machine."""
        _ip("link", "set", self._outside, "down")

    def connect(self) -> None:
        """Let everything pass again."""
        _ip("link", "set", self._outside, "up")

    def remove(self) -> None:
        """Remove it; what is not there is no error."""
        for words in (("link", "delete", self._outside), ("netns", "delete", self.name)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
