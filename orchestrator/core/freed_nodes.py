"""Which node the next boot of a study will run on, as far as its own boots tell."""

from __future__ import annotations


class FreedNodes:
    """Nodes whose boot has ended and that got none since.

    Ray places boots and is not asked: where one node alone is free, the next boot runs there. With
    more nodes than boots another may be idle for longer and get it, in simulated races on 8 nodes
    every fifth time; then what is compared is spread less evenly, and no more.
    """

    def __init__(self) -> None:
        self._nodes: set[str | None] = set()

    @property
    def next(self) -> str | None:
        """The node that alone was freed since the last boot began; None where there is no such."""
        return next(iter(self._nodes)) if len(self._nodes) == 1 else None

    def free(self, node_id: str | None) -> None:
        """Note that the boot on a node has ended; None: on one that is not known."""
        self._nodes.add(node_id)

    def take(self) -> None:
        """Note that a boot begins; which of several nodes it took is not known any more."""
        self._nodes.clear()
