"""Launch: processes are started with a handover, at once or from a spare one that waits for it.

Owns how a handover reaches a process: by inheritance, or over a socket. Must not know what is in it, nor when a
process is started. Invariants:
* a process inherits the descriptors of its handover alone; a spare one inherits its socket alone.
* a spare process has imported what all roles need, holds nothing of its supervisor, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.supervisor.handover import NoHandover, read_handover, write_handover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from proxy.supervisor.handover import Handover

SPARE = "--spare"
"""The argument of a worker before the descriptor of its socket."""
SPARE_NAME = "forebay-spare"
"""What `ps -o comm` says of one that waits."""
OWN_NAME = Path("/proc/self/comm")
MOST_DESCRIPTORS = 253
"""Of one message (SCM_MAX_FD of Linux): one with more listeners is started without a spare process."""


def launch(command: Sequence[str], handover: Handover) -> tuple[int, int]:
    """Start a process, which takes the handover by its descriptor: the last argument. Returns its id and its pidfd.
    Raises OSError, after which no process is left.
    """
    fd = write_handover(handover)
    try:
        with inheriting(handover.list_descriptors()):
            return spawn([*command, str(fd)])
    finally:
        os.close(fd)


class Spare:
    """A process that waits for a handover. Call `give` or `drop`, once."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command` starts a worker. Raises OSError, after which no process is left."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, inheriting([theirs.fileno()]):
                self.pid, self._pidfd = spawn([*command, SPARE, str(theirs.fileno())])
        except OSError:
            self._socket.close()
            raise

    def give(self, handover: Handover) -> tuple[int, int] | None:
        """Have it be the process of a handover. Returns its id and its pidfd; None: it cannot, and is gone. Raises
        OSError, after which it is gone, too.
        """
        try:
            fd = write_handover(handover)
        except OSError:
            self.drop()
            raise
        given = [fd, *handover.list_descriptors()]
        try:
            with self._socket:
                socket.send_fds(self._socket, [array("i", given)], given)
        except OSError:  # it has ended, or these are more than MOST_DESCRIPTORS
            self.drop()
            return None
        finally:
            os.close(fd)
        return self.pid, self._pidfd

    def drop(self) -> None:
        """End it."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it has ended, and was reaped as an orphan
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)


def wait_for_handover(fd: int) -> Handover | None:
    """What a spare process is given over its socket; None: the supervisor needs it no more. An interrupt from a
    terminal ends it without a word meanwhile. Raises NoHandover.
    """
    name = OWN_NAME.read_text().strip()
    at_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        OWN_NAME.write_text(SPARE_NAME)
        with socket.socket(fileno=fd) as waiting:
            content, received, _, _ = socket.recv_fds(
                waiting, MOST_DESCRIPTORS * array("i").itemsize, MOST_DESCRIPTORS
            )
    except OSError as error:
        raise NoHandover(f"descriptor {fd} is no socket of a supervisor: {error}") from error
    OWN_NAME.write_text(name)
    signal.signal(signal.SIGINT, at_interrupt)
    if not received:
        return None
    return read_handover(received[0], dict(zip(array("i", content), received, strict=True)))


@contextlib.contextmanager
def inheriting(descriptors: Iterable[int]) -> Iterator[None]:
    """Context in which processes that are started inherit these descriptors."""
    kept = [fd for fd in descriptors if not os.get_inheritable(fd)]
    for fd in kept:
        os.set_inheritable(fd, True)
    try:
        yield
    finally:
        for fd in kept:
            os.set_inheritable(fd, False)


def spawn(arguments: list[str]) -> tuple[int, int]:
    """Start a process, which inherits what is inheritable. Returns its id and its pidfd. Raises
    OSError, after which no process is left.
    """
    pid = os.posix_spawn(arguments[0], arguments, os.environ)
    try:
        return pid, os.pidfd_open(pid)
    except OSError:  # no descriptor left, or a kernel before Linux 5.3
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
