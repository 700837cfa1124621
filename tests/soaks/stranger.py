"""Another user of a machine, who has no secret: tries every port that listens, and every folder of the user attacked.

    python3 -I stranger.py FOLDER SOCKET...

A program of the standard library alone, to be run under the other user's id, in a network namespace where nothing
listens but what is attacked (`tests.soaks.attackers_hour`). It begins before the servers do, goes on until its input
ends, and then prints one line of JSON: how often it tried what, and what it was let in to.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ANSWER_S = 0.5
HELD = 400  # connections that ask for memory and then keep silent
LISTEN = "0A"
MAPPED = ("", "0000000000000000FFFF0000")  # what stands before an address of IPv4, as the kernel writes both
OPEN_TO_ALL = struct.pack(">ii", 1, 31)


def text(words: str) -> bytes:
    return struct.pack(">i", len(words)) + words.encode()


def framed(packet: bytes) -> bytes:
    return struct.pack(">i", len(packet)) + packet


def create(number: int, path: str) -> bytes:
    acl = OPEN_TO_ALL + text("world") + text("anyone")
    return framed(struct.pack(">ii", number, 1) + text(path) + text("") + acl + bytes(4))


def read(number: int, kind: int, path: str) -> bytes:
    return framed(struct.pack(">ii", number, kind) + text(path) + b"\0")


# ZooKeeper's protocol: a session, then a digest that opens nothing
HELLO = framed(struct.pack(">iqiqi", 0, 0, 10_000, 0, 16) + bytes(16) + b"\0")
AUTH = framed(struct.pack(">iii", -4, 100, 0) + text("digest") + text("x:y"))
PATHS = ("/edl-cluster", "/edl-cluster/jobs", "/edl", "/stranger", "/zookeeper/stranger", "/zookeeper/quota/stranger")
READS = [
    read(50 + kind, kind, path) for kind in (4, 8, 12) for path in ("/", "/zookeeper", "/zookeeper/config", "/edl")
]
ASKED = HELLO + AUTH + b"".join(create(number, path) for number, path in enumerate(PATHS, 1)) + b"".join(READS)
WATCH = HELLO + AUTH + framed(struct.pack(">ii", 1, 3) + text("/" + "w" * 900_000) + b"\1")
LONG = struct.pack(">i", 0xFFFFF - 1)
HTTP = [
    f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    for verb, path in (("GET", "/"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/status"), ("POST", "/scale"))
    for header in ("", "Authorization: Bearer guessed\r\n", "Cookie: edl=guessed\r\n")
]


def ears() -> Iterator[tuple[str, int]]:
    """Where processes listen in this network namespace. Horovod's own server, which any silent caller stops for good,
    listens on all addresses, and no server of edl's does.
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, here, _, state, *_ = line.split()
            address, port = here.split(":")
            if state == LISTEN and address.strip("0") and address[:-8] in MAPPED:
                yield socket.inet_ntoa(struct.pack("=I", int(address[-8:], 16))), int(port, 16)


def answer_to(link: socket.socket, question: bytes) -> bytes:
    link.settimeout(ANSWER_S)
    heard = b""
    with contextlib.suppress(OSError):
        link.sendall(question)
        while piece := link.recv(65_536):
            heard += piece
    return heard


class Stranger:
    def __init__(self, folder: Path, sockets: list[Path]) -> None:
        self.folder, self.sockets = folder, sockets
        self.tried: Counter[str] = Counter()
        self.let_in: Counter[str] = Counter()
        self.held: list[socket.socket] = []
        self.over = threading.Event()

    def work(self, first: int) -> None:
        acts: list[Callable[[tuple[str, int]], None]] = [self.ask, self.press, self.surf, self.rush, self.babble]
        turn = first
        while not self.over.is_set():
            found = list(ears()) or time.sleep(0.0005) or []
            for ear in found:
                act = acts[turn % len(acts)]
                turn += 1
                with contextlib.suppress(OSError):
                    act(ear)
                    self.tried[act.__name__] += 1
            self.enter()

    def ask(self, ear: tuple[str, int]) -> None:
        """To make nodes in a ZooKeeper, and to read them."""
        with socket.create_connection(ear, ANSWER_S) as link:
            heard = answer_to(link, ASKED)
        while len(heard) >= 4:
            (size,) = struct.unpack_from(">i", heard)
            frame, heard = heard[4 : 4 + size], heard[4 + size :]
            if len(frame) >= 16 and 0 < struct.unpack_from(">i", frame)[0] < 100:
                number, _, error = struct.unpack_from(">iqi", frame)
                if error == 0:
                    self.let_in[f"ZooKeeper, request {number}"] += 1

    def press(self, ear: tuple[str, int]) -> None:
        """Have its memory filled."""
        link = socket.create_connection(ear, ANSWER_S)
        link.settimeout(ANSWER_S)
        link.sendall(WATCH if self.tried["press"] % 2 else LONG)
        self.held.append(link)
        if len(self.held) > HELD:
            self.held.pop(0).close()

    def surf(self, ear: tuple[str, int]) -> None:
        with socket.create_connection(ear, ANSWER_S) as link:
            asked = HTTP[self.tried["surf"] % len(HTTP)]
            heard = answer_to(link, asked)
        if heard.startswith(b"HTTP/1.1 2") and b"edl_" not in heard:
            self.let_in[f"HTTP, {asked.split(b'HTTP')[0].decode()}"] += 1

    def rush(self, ear: tuple[str, int]) -> None:
        """Be gone before anybody can look who it was."""
        with socket.create_connection(ear, ANSWER_S) as link:
            link.sendall(ASKED)

    def babble(self, ear: tuple[str, int]) -> None:
        for words in (b"\xff" * 64, b"srvr", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64)):
            with socket.create_connection(ear, ANSWER_S) as link:
                link.sendall(words)

    def enter(self) -> None:
        """Into folders, files and sockets."""
        self.tried["enter"] += 1
        for folder, _, files in os.walk(self.folder):
            place = Path(folder)
            self.let_in[f"folder {place.relative_to(self.folder)}"] += 1
            for name in files:
                with contextlib.suppress(OSError):
                    (place / name).read_bytes()
                    self.let_in[f"file {(place / name).relative_to(self.folder)}"] += 1
            with contextlib.suppress(OSError):
                (place / "strangers").touch()
                self.let_in[f"writes in {place}"] += 1
        for path in self.sockets:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
                link.connect(str(path))
                self.let_in[f"socket {path}"] += 1


def main() -> None:
    stranger = Stranger(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
    workers = [threading.Thread(target=stranger.work, args=(first,)) for first in range(3)]
    for worker in workers:
        worker.start()
    print("ready", flush=True)
    select.select([sys.stdin], [], [])
    stranger.over.set()
    for worker in workers:
        worker.join()
    print(json.dumps({"tried": stranger.tried, "let_in": stranger.let_in}))


if __name__ == "__main__":
    main()
