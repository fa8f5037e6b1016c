"""A process that behaves as worker or keeper toward the supervisor and does no work: a program, to be run alone.

Owns what it takes from the handover, read as plain values, so that it starts in milliseconds. Each thing that happens
is a line of JSON in `events`. Files in `orders` say what it does at its start: `ROLE-NUMBER`, or `ROLE`, with words of
`exit CODE`, `late` (not ready before the file is gone), `mute` (no heartbeat), `stay` (ignores the signals at which
it should end), `refuse` (of the keeper, at any time: reloads are refused).
Arguments: the directory, and the handover's descriptor, which the supervisor appends, or `--spare` and that of a
socket, over which it is given the handover later.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import time
from array import array
from pathlib import Path

BEAT_S = 0.05


class Stub:
    """The process."""

    def __init__(self, directory, given):
        self.directory, self.given = directory, given
        self.role, self.number = given["role"], given["number"]
        self.events = os.open(f"{directory}/events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.signals, wakeup = os.pipe2(os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        self.listening = [open_socket(fd) for each in given["listeners"] for fd in each]
        self.admin = [open_socket(fd) for fd in given["admin"]]
        self.keeper = open_socket(given["keeper"]) if self.role == "keeper" else None
        self.clients = []
        self.held = set()
        self.workers = []
        self.attached = None
        self.is_draining = False

    def tell(self, event, **more):
        fields = {"event": event, "pid": os.getpid(), "role": self.role, "number": self.number}
        os.write(self.events, json.dumps(fields | more).encode() + b"\n")

    @property
    def order(self):
        for name in (f"{self.role}-{self.number}", self.role):
            try:
                return Path(self.directory, "orders", name).read_text().split()
            except FileNotFoundError:
                pass
        return []

    def look_at_arena(self):
        """What an earlier keeper has left, and this one's own mark."""
        if self.given["arena"] is None:
            return None
        fd = self.given["arena"][0]
        found = os.pread(fd, 64, 0).decode()
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{found}.{os.getpid()}".encode(), 0)
        return found

    def run(self):
        inherited = sorted(list_descriptors())
        self.tell(
            "started",
            arena=self.look_at_arena(),
            is_successor=self.given["isSuccessor"],
            sockets=[len(self.listening), len(self.admin)],
            keeper=str(self.given["keeper"]),
            inherited=inherited,
        )
        order = self.order
        if "exit" in order:
            sys.exit(int(order[order.index("exit") + 1]))
        while "mute" in order:
            time.sleep(600)
        while "late" in self.order:
            os.write(self.given["heartbeat"], b"s")
            time.sleep(BEAT_S)
        self.tell("ready")
        while not (self.is_draining and not self.clients):
            self.turn("stay" in order)
        self.tell("ended")

    def turn(self, stays):
        try:
            os.write(self.given["heartbeat"], b"r")
        except BrokenPipeError:
            self.drain()
        waited = [self.signals, *self.clients, *self.admin, *self.workers]
        waited += [] if self.is_draining else self.listening
        waited += [self.keeper] if self.keeper else []
        waited += [self.attached] if self.attached else []
        for one in select.select(waited, [], [], BEAT_S)[0]:
            if one == self.signals:
                self.take_signals(stays)
            elif one in self.listening and not self.is_draining:
                self.accept(one)
            elif one in self.admin:
                self.answer_admin(one)
            elif one is self.keeper:
                self.accept_worker(one)
            elif one is self.attached:
                self.read_keeper(one)
            elif one in self.workers:
                self.forget_worker(one)
            elif one in self.clients and one.fileno() >= 0:
                self.answer(one)
        if self.role == "worker" and self.attached is None:
            self.attach()

    def take_signals(self, stays):
        for number in os.read(self.signals, 64):
            self.tell("signal", name=signal.Signals(number).name)
            if number == signal.SIGHUP and self.role == "keeper" and "refuse" not in self.order:
                os.write(self.given["heartbeat"], b"rc")
            if number != signal.SIGHUP and not stays:
                self.drain()

    def drain(self):
        self.is_draining = True
        for one in self.listening:
            one.close()
        self.listening = []
        for one in set(self.clients) - self.held:
            self.leave(one)

    def accept(self, listening):
        if self.clients:
            time.sleep(BEAT_S)  # another one may have none
        try:
            client, _ = listening.accept()
        except BlockingIOError:
            return
        self.clients.append(client)

    def answer(self, client):
        """Say who answers to "who", and close afterwards while it drains; "hold" is answered by the next "who"."""
        try:
            asked = client.recv(100)
            if asked == b"hold\n":
                self.held.add(client)
                client.sendall(b"null\n")
                return
            if asked:
                client.sendall(json.dumps([self.number, os.getpid()]).encode() + b"\n")
        except OSError:
            asked = b""
        self.held.discard(client)
        if not asked or self.is_draining:
            self.leave(client)

    def leave(self, client):
        client.close()
        self.clients.remove(client)

    def answer_admin(self, listening):
        """The supervisor's figures."""
        try:
            asking, _ = listening.accept()
        except BlockingIOError:
            return
        fd, names = self.given["figures"]
        words = memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("q")
        shown = "".join(f"{' '.join(name)} {words[at]}\n" for at, name in enumerate(names))
        with asking:
            asking.settimeout(60)
            asking.recv(4096)
            asking.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + shown.encode())

    def accept_worker(self, listening):
        worker, _ = listening.accept()
        try:
            worker.sendall(str(os.getpid()).encode())
        except BrokenPipeError:  # it has ended since
            worker.close()
        else:
            self.workers.append(worker)

    def forget_worker(self, worker):
        self.workers.remove(worker)
        worker.close()

    def attach(self):
        attached = socket.socket(socket.AF_UNIX)
        attached.setblocking(False)
        try:
            attached.connect(self.given["keeper"])
        except OSError:
            attached.close()
            return
        self.attached = attached

    def read_keeper(self, attached):
        try:
            said = attached.recv(100)
        except OSError:
            said = b""
        if said:
            self.tell("attached", to=int(said))
        else:
            self.tell("detached")
            attached.close()
            self.attached = None


def list_descriptors():
    """What each open descriptor is, but for the one by which they are listed."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            yield str(link.readlink())
        except OSError:
            continue


def open_socket(fd):
    one = socket.socket(fileno=fd)
    one.setblocking(False)
    return one


def wait_for_handover(directory, fd):
    """The handover's descriptor; all have the supervisor's numbers."""
    events = os.open(f"{directory}/events", os.O_WRONLY | os.O_APPEND)
    said = {"event": "spare", "pid": os.getpid(), "role": "spare", "number": 0}
    said["inherited"] = sorted(list_descriptors())
    os.write(events, json.dumps(said).encode() + b"\n")
    os.close(events)
    with socket.socket(fileno=fd) as waiting:
        content, received, _, _ = socket.recv_fds(waiting, 4096, 253)
    if not received:
        sys.exit(0)
    wanted = array("i", content)
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, 1000) for each in received]
    for each in received:
        os.close(each)
    for each, number in zip(moved, wanted, strict=True):
        os.dup2(each, number)
        os.close(each)
    return wanted[0]


if __name__ == "__main__":
    handed = int(sys.argv[-1])
    if sys.argv[2] == "--spare":
        handed = wait_for_handover(sys.argv[1], handed)
    content = pickle.loads(os.pread(handed, 1 << 20, 0))
    os.close(handed)
    Stub(sys.argv[1], content).run()
