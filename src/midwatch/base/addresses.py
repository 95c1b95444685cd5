"""IP addresses: whether an address is on the internet, or belongs to this machine or its network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

UNICAST = IPv6Network("2000::/3")
"""All IPv6 addresses of the internet. Site-local, link-local, local NAT64 and other local addresses are outside."""
HOLES = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Networks that are not on the internet, but that some versions of Python count as global."""
WITH_IPV4 = {IPv6Network(network): 12 for network in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")} | {
    IPv6Network("2002::/16"): 2
}
"""Networks whose addresses contain an IPv4 address, and the byte at which it begins."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an IP address is on the internet. An IPv4 address inside an IPv6 address is checked instead."""
    if isinstance(address, IPv6Address):
        for network, begin in WITH_IPV4.items():
            if address in network:
                return is_public(IPv4Address(address.packed[begin : begin + 4]))
        if address not in UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in hole for hole in HOLES)
