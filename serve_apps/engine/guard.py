"""Leader of the engine's process group: nothing of an engine outlives its supervisor.

Started by the supervisor in a session of its own, with a pipe as standard input. It starts the
engine as its child and ends everything of the boot when the pipe closes (the supervisor is gone,
even by SIGKILL), on SIGTERM, or when the engine itself has ended. It exits with the engine's
status, 128 + signal for a signal. The engine's output goes to the guard's standard error; the
engine's process id is the one line on standard output.

Last it removes the folder of the boot's sockets and the boot's shared memory: a killed engine
leaves both. Whose shared memory is whose it sees while the engine lives (``segments.Watch``).

Standard library only: it has to start in milliseconds, whatever the engine build.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from serve_apps.engine import procfs, segments

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _become_engine(argv: list[str], guard: int) -> None:
    """Replace this forked child by the engine; never returns."""
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # in case somebody kills the guard itself
        if os.getppid() != guard:  # and did so already
            os._exit(128 + signal.SIGTERM)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.execve(argv[0], argv, os.environ)
    except OSError as error:
        os.write(2, f"specpilot guard: {argv[0]}: {error}\n".encode())
    os._exit(127)


def _wait(engine: int, wakeup: int, look: Callable[[], object]) -> int | None:
    """Wait for the end of the engine, of the supervisor, or for a signal, and look meanwhile.

    Returns:
        The engine's exit status when it ended by itself, else None.
    """
    while True:
        readable, _, _ = select.select([0, wakeup], [], [], _LOOK_S)
        if not readable:
            look()
        if wakeup in readable:
            numbers = os.read(wakeup, 64)
            status = _collect(engine)
            if status is not None or signal.SIGTERM in numbers or signal.SIGINT in numbers:
                return status
        if 0 in readable and not os.read(0, 64):
            return None


def _collect(engine: int) -> int | None:
    """Reap every ended child (orphans of the engine too); return the engine's status if ended."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == engine:
            code = os.waitstatus_to_exitcode(raw)
            status = code if code >= 0 else 128 - code


def _collect_last(engine: int) -> int | None:
    """Return the engine's status when all else has ended; None when it does not end in time.

    A process whose first thread has ended shows as a zombie while its other threads still end.
    """
    deadline = time.monotonic() + procfs.KILL_S
    while (status := _collect(engine)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return status


def main(argv: list[str]) -> int:
    """Guard one engine.

    Args:
        argv: Grace period in seconds, "NAME=value" that marks the boot, the folder of its sockets,
            the file of its record or nothing, then the engine's command.

    Returns:
        The engine's exit status.
    """
    grace_s, (mark, folder, file), command = float(argv[0]), argv[1:4], argv[4:]
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the engine orphans stays below this process
    guard = os.getpid()
    watch = segments.Watch(segments.segments_file(file) if file else None)
    # Until the child has its own handlers a signal must wait: the guard's would swallow it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    engine = os.fork()
    if engine == 0:
        _become_engine(command, guard)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.write(1, f"{engine}\n".encode())
    os.close(1)
    status = _wait(engine, wakeup, lambda: watch.look(os.getpgrp(), mark))
    watch.look(os.getpgrp(), mark, finally_=True)
    left = [f"survived SIGKILL: {it}" for it in procfs.end(os.getpgrp(), mark, grace_s=grace_s)]
    unknown = watch.unattributed()
    left += segments.clear(folder, watch.own, file, keep=bool(left))
    left += [f"/dev/shm/{name}: whose it is cannot be told" for name in unknown]
    for text in left:
        os.write(2, f"{segments.NOTE}{text}\n".encode())
    if status is None:
        status = _collect_last(engine)
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
