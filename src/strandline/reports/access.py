"""Which clients may read the metrics: they name tables, branches and sinks.

A token may, and so may this machine itself. A proxy on this machine speaks from its loopback too, for clients that are
elsewhere: a request that says it was forwarded is not this machine's. One that a proxy forwards without saying so can't
be told apart, so such a proxy has to keep /metrics to itself.

A browser on this machine speaks from its loopback too, for whatever page it shows: a page whose own name was made to
lead to this machine could read what is answered there. Its requests still carry that name, so a request counts as this
machine's only if it is addressed to this machine, as `localhost` or by a loopback address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

OPEN = "open"
FORWARDED = frozenset({"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<v4>[0-9.]+)|(?P<name>[A-Za-z]+))(?::[0-9]{0,5})?")


def is_local(client: str | None, headers: Iterable[tuple[str, str]]) -> bool:
    """Whether a request comes from this machine and is meant for it, by its connection's address and its headers."""
    lowered = [(name.lower(), value) for name, value in headers]
    hosts = [value for name, value in lowered if name == "host"]
    forwarded = any(name in FORWARDED for name, _ in lowered)
    return not forwarded and _is_loopback(client or "") and len(hosts) == 1 and _names_loopback(hosts[0])


def _names_loopback(host: str) -> bool:
    """Whether a Host header, with a port or without, is a name of this machine's loopback."""
    match = _HOST.fullmatch(host.strip())
    if match is None:
        return False
    return match["name"].lower() == "localhost" if match["name"] else _is_loopback(match["v6"] or match["v4"])


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
