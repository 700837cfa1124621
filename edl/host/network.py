"""Addresses of this host: by which others reach it, loopback if all workers are on one host."""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import ip_address

from edl.errors import ConfigError

_SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"


def address_towards(host: str, port: int) -> str:
    """Return this host's own address on the route to `host`. Raises ConfigError."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing: it only asks the kernel for the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"there is no way to {host}:{port} from here ({error}): check EDL_COORDINATOR") from None


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of a numeric address, or of a name that resolves to IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_loopback(host: str) -> bool:
    """Tell whether a numeric address, or `localhost`, is reached from this machine only."""
    try:
        return ip_address(LOOPBACK if host == "localhost" else host).is_loopback
    except ValueError:
        return False


def address_of(interface: str) -> str:
    """Raises ConfigError where the interface has no IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            raise ConfigError(f"network interface {interface} has no IPv4 address: choose another") from None
    return socket.inet_ntoa(answer[20:24])


def is_this_host(name: str) -> bool:
    """`name` may be one of the host's addresses, too."""
    if name == socket.gethostname():
        return True
    for _, interface in socket.if_nameindex():
        try:
            if address_of(interface) == name:
                return True
        except ConfigError:  # an interface without an IPv4 address is not the one
            continue
    return False


def interface_of(address: str) -> str:
    """Raises ConfigError where no interface has `address`."""
    for _, name in socket.if_nameindex():
        try:
            if address_of(name) == address:
                return name
        except ConfigError:  # an interface without an IPv4 address is not the one
            continue
    if address.startswith("127."):
        return "lo"
    raise ConfigError(f"no network interface has the address {address}: name one by EDL_NETWORK_INTERFACE")
