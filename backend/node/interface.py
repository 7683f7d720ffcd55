"""Network interface of the route from this node to another address."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

SIOCGIFADDR = 0x8915


def find_interface(master: str) -> str | None:
    """Return the network interface of the route to `master`, or None without a route."""
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            # This sends no packet. The kernel only chooses the route.
            sock.connect(sockaddr)
            own_address = sock.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if own_address in addresses_of(name):
            return name
    return None


def addresses_of(interface: str) -> list[str]:
    """Return the main IPv4 address and the IPv6 addresses of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            addresses = [socket.inet_ntoa(answer[20:24])]
        except OSError:  # The interface has no IPv4 address.
            addresses = []
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:  # The kernel has no IPv6.
        rows = []
    return addresses + [str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if row[5] == interface]
