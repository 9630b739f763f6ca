"""Headers and parameters that may be there once.

HTTP lets a header be repeated, and leaves open which one counts where it is not a list. A proxy that has checked the
first `Idempotency-Key` or `Strand-Epoch` must not let another one through behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request

from strandline.errors import BadRequest

ONCE = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "transfer-encoding",
    }
)
OURS = "strand-"


def refuse_doubled(request: Request) -> None:
    """Raise BadRequest if a header that we go by, or a parameter, is there more than once."""
    headers = [name for name in request.headers.keys() if name in ONCE or name.startswith(OURS)]  # noqa: SIM118
    _check(headers, "header")
    _check((name for name, _ in request.query_params.multi_items()), "parameter")


def _check(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"the {what} {name[:80]!r} is there more than once", hint="Send it once.")
        seen.add(name)
