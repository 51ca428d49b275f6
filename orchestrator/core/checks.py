"""Whether a measured block may count."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.types import Arm, Block


def check_block(
    block: Block, arm: Arm, *, texts: Sequence[str] = (), max_failed_share: float = 0.0
) -> str | None:
    """Return why the block gets no score, in one sentence, or None for a valid block.

    Args:
        block: The block as measured.
        arm: The arm that served it.
        texts: Answers of the block, where they are kept; tell garbage from a poor draft.
        max_failed_share: Largest share of failed requests that a block may have, 0 to 1.
    """
    raise NotImplementedError


def draft_doubt(blocks: Sequence[Block]) -> str | None:
    """Return a sentence when the draft itself looks broken, else None.

    A first position that accepts under 10 % speaks of a wrong draft, not of speculation.
    """
    raise NotImplementedError
