from __future__ import annotations

from orchestrator.core.freed_nodes import FreedNodes


def test_next_boot_runs_on_the_only_node_that_was_freed() -> None:
    nodes = FreedNodes()
    assert nodes.next is None, "at the beginning nothing is known of any node"

    nodes.free("a")
    assert nodes.next == "a"

    nodes.take()
    assert nodes.next is None


def test_which_of_several_free_nodes_is_next_is_not_known_nor_which_of_them_is_left() -> None:
    nodes = FreedNodes()
    nodes.free("a")
    nodes.free("b")
    assert nodes.next is None

    nodes.take()
    assert nodes.next is None

    nodes.free("a")
    assert nodes.next == "a"


def test_boot_that_was_lost_with_its_process_frees_a_node_that_is_not_known() -> None:
    nodes = FreedNodes()
    nodes.free(None)
    assert nodes.next is None

    nodes.free("a")
    assert nodes.next is None
