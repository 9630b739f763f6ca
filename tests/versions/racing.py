"""Two changes at once, of which one was judged before the other was stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from strandline import failpoints
from strandline.errors import Conflict, InvalidRows
from strandline.lake import Lake

Work = Callable[[Lake], object]


def outcome(lake: Lake, work: Work) -> str:
    """`stored`, or the kind of the conflict; `invalid` where the rows are wrong by themselves."""
    try:
        work(lake)
    except Conflict as error:
        return str(error.detail["kind"])
    except InvalidRows:
        return "invalid"
    return "stored"


def racing(lake: Lake, first: Work, second: Work, place: str = "mutate.before_store") -> list[str]:
    """Two changes of two open lakes; the second is made while the first is judged and not stored. How each ends.

    `place` is where the first one is then.
    """
    with Lake(lake.root) as other, ThreadPoolExecutor(1) as pool:
        failpoints.arm(f"{place}=sleep(800)@1")
        late = pool.submit(outcome, other, first)
        while failpoints.passages(place) == 0:
            assert not late.done(), late.result()
            time.sleep(0.01)
        early = outcome(lake, second)
        return [late.result(60), early]
