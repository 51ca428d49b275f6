"""What ends a command as Ctrl-C does, and what leaves an end alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from orchestrator.interrupts import HANG_UPS, ended_like_ctrl_c, undisturbed

ALL = (signal.SIGINT, *HANG_UPS)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Begin as a shell starts a background command; put this process's handlers back."""
    before = {each: signal.getsignal(each) for each in ALL}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for each in HANG_UPS:
        signal.signal(each, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", ALL)
def test_whatever_runs_a_cluster_is_interrupted_but_not_in_its_end(number: int) -> None:
    with ended_like_ctrl_c(in_background=True):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        with undisturbed():
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):  # as before, so that a next cluster can be ended
            signal.raise_signal(number)


@pytest.mark.parametrize("number", HANG_UPS)
def test_command_in_the_background_is_ended_by_a_hang_up_and_not_by_ctrl_c(number: int) -> None:
    with ended_like_ctrl_c():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("in_background", [False, True])
def test_hang_up_that_nohup_ignores_stays_ignored(in_background: bool) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_like_ctrl_c(in_background=in_background):
        signal.raise_signal(signal.SIGHUP)


def test_signals_are_handled_as_before_afterwards() -> None:
    before = [signal.getsignal(each) for each in ALL]

    with ended_like_ctrl_c(in_background=True), undisturbed():
        pass

    assert [signal.getsignal(each) for each in ALL] == before
