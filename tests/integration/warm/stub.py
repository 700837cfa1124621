"""Stands in a worker's command line in the place of Python: `python -IS stub.py SOCKET script.py ...`.

Asks the zygote for a fork, hands signals on to it, and ends as it has ended. It imports next to nothing.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import time

CALL_S = 120.0  # a zygote may have to be imported yet, on a busy machine
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def ask(path, command, environ, folder, streams, outlives=False):
    """The connection to the zygote, from which a process's pid and then its exit status can be read, a line each.

    `outlives`: it lives on when the connection ends.
    """
    message = json.dumps({"command": command, "environ": environ, "folder": folder, "outlives": outlives}).encode()
    zygote = call(path)
    socket.send_fds(zygote, [message[:1]], streams)
    zygote.sendall(message[1:])
    zygote.shutdown(socket.SHUT_WR)
    return zygote


def call(path):
    deadline = time.monotonic() + CALL_S
    while True:
        zygote = socket.socket(socket.AF_UNIX)
        try:
            zygote.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            zygote.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return zygote


def read_number(zygote):
    """The next line of a zygote's answer."""
    line = b""
    while not line.endswith(b"\n"):
        part = zygote.recv(1)
        if not part:
            raise SystemExit("the zygote is gone, and its workers with it")
        line += part
    return int(line)


def end_as(status):
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until there is a process to hand them to
    zygote = ask(sys.argv[1], sys.argv[2:], dict(os.environ), os.getcwd(), (0, 1, 2))  # noqa: PTH109 - pathlib takes longer than all of this
    pid = read_number(zygote)
    heard, hear = os.pipe()  # Python calls no handler for a signal that comes just before it blocks
    os.set_blocking(hear, False)
    signal.set_wakeup_fd(hear)
    for number in HANDED_ON:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    while zygote not in select.select([zygote, heard], [], [])[0]:
        for came in os.read(heard, 64):
            try:
                os.kill(pid, came)
            except ProcessLookupError:  # it has ended, which the zygote is about to tell
                break
    end_as(read_number(zygote))


if __name__ == "__main__":
    main()
