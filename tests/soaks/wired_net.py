"""Hosts that are network namespaces, joined by pairs of virtual cards and a bridge of the kernel: as fast as it is.

Owns: that wiring. Does not own: the namespaces (`partition_net`, whose own switch loses and delays frames, and passes a
few megabytes a second). Needs root, iproute2, and a kernel that has veth and bridge.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.soaks.partition_net import DEVICE, NAMESPACES, Host, Network, end_all_in, ip, why_not

SWITCH = "switch"


def why_no_wires() -> str:
    """Why there can be none here; empty if there can."""
    if reason := why_not():
        return reason
    name = f"edl{os.getpid()}-w"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "br0", "type", "bridge")
        ip("-n", name, "link", "add", "wire0", "type", "veth", "peer", "name", "wire1")
    except subprocess.CalledProcessError as error:
        return f"the kernel has no veth or bridge ({error.stderr.strip()})"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("netns", "del", name)
    return ""


class WiredNetwork(Network):
    """Its hosts reach each other at the speed of the machine."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._switchboard = f"edl{os.getpid()}-{SWITCH}"

    def open(self) -> None:
        ip("netns", "add", self._switchboard)
        ip("-n", self._switchboard, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switchboard, "link", "set", "br0", "up")
        for host in self.hosts:
            self._join(host)

    def _join(self, host: Host) -> None:
        port = f"port{host.number}"
        ip("netns", "add", host.namespace)
        ip("-n", host.namespace, "link", "add", DEVICE, "type", "veth", "peer", "name", port)
        ip("-n", host.namespace, "link", "set", port, "netns", self._switchboard)
        ip("-n", self._switchboard, "link", "set", port, "master", "br0", "up")
        ip("-n", host.namespace, "link", "set", "lo", "up")
        ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", DEVICE)
        ip("-n", host.namespace, "link", "set", DEVICE, "up")

    def close(self) -> None:
        """All processes of the hosts end, and the hosts with them."""
        before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            for host in self.hosts:
                if (NAMESPACES / host.namespace).exists():
                    end_all_in(host)
                    ip("netns", "del", host.namespace)
            if Path(NAMESPACES / self._switchboard).exists():
                ip("netns", "del", self._switchboard)
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
