"""Who may read the metrics: they name tables, branches and sinks.

A token may, and so may this machine itself. A proxy on this machine speaks from its loopback too, for clients that are
elsewhere: a request that says it was forwarded is not this machine's. One that a proxy forwards without saying so can't
be told apart, so such a proxy has to keep /metrics to itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

OPEN = "open"
FORWARDED = frozenset({"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})


def is_local(host: str | None, headers: Iterable[str]) -> bool:
    """Whether a request comes from this machine, by the address of its connection and the names of its headers."""
    if any(name.lower() in FORWARDED for name in headers):
        return False
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
