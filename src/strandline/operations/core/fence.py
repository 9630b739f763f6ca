"""The fence between copies of one lake, held in the ledger and in the warehouse's marker.

Before a publish the two are compared; before anything is deleted both are raised. Processes of one lake share a ledger,
so they always agree. A copy of the ledger has a number of its own: as soon as one of them raises, the other is behind,
and writes nothing any more. Every process raises when it starts Spark too, because Iceberg's commits remove old
metadata files on their own.
"""

from __future__ import annotations

from strandline.actors import checked_actor
from strandline.config import LakeConfig
from strandline.engines.warehouse import Marker, ObjectPlace, read_marker, refuse_other, swap_marker
from strandline.errors import (
    WAREHOUSE,
    Busy,
    Conflict,
    Displaced,
    Fenced,
    NoMarker,
    PersonError,
    StrandError,
    TransientError,
)
from strandline.failpoints import fail
from strandline.ledger.audit import DOCTOR, audit_decision
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.place import places
from strandline.ledger.place.places import Home

ATTEMPTS = 50
CLAIM = "strand doctor --fix --claim-warehouse"


class Fence:
    """What keeps a copy of this lake, or an older ledger of it, from writing to the warehouse."""

    def __init__(self, ledger: Ledger, warehouse: ObjectPlace) -> None:
        self._ledger = ledger
        self._warehouse = warehouse

    @classmethod
    def of(cls, ledger: Ledger, config: LakeConfig) -> Fence:
        """The fence of a lake."""
        return cls(ledger, ObjectPlace(config.warehouse, config.store))

    def compare(self) -> None:
        """Displaced unless the warehouse's marker has this ledger's number.

        A raise is noted in the ledger before it is in the marker. So if the ledger, read after the marker, says what it
        said before, the marker was changed by something that does not share this ledger.
        """
        for _ in range(ATTEMPTS):
            home, marker = self._home(), read_marker(self._warehouse)
            if agrees(home, marker):
                return
            if self._home() == home:
                raise refusal(home, marker, self._warehouse)
        raise Busy(f"the marker of {self._warehouse.uri} keeps changing", reason="contention")

    def raise_(self) -> None:
        """Raise the number on both sides: a copy of the ledger that was taken before can't write from here on."""
        if self._ledger.database.read_only:
            return  # Spark reads, and nothing is deleted
        self.compare()  # before anything is made in a folder that may be an empty mount point
        begun = self._ledger.run(places.begin_raise)
        assert begun.raising is not None
        goal = Marker(begun.lake_id, begun.generation, begun.fence + 1, begun.raising)

        def raised(marker: Marker | None) -> Marker:
            if marker is not None and self._home().fence > begun.fence:
                return marker  # another process of this lake has raised it for us, and may have gone on
            if not agrees(begun, marker):
                raise refusal(begun, marker, self._warehouse)
            return goal

        def confirm(txn: Txn) -> None:
            places.confirm_raise(txn, begun)
            fail("fence.before_commit")

        fail("fence.before_marker")
        swap_marker(self._warehouse, raised)
        fail("fence.after_marker")
        self._ledger.run(confirm)
        fail("fence.after_commit")

    def claim(self, actor: str = "") -> str:
        """By a person's word this ledger is the one: put the marker back, above every number that either side has."""
        actor = checked_actor(actor, None)
        home = self._home()
        fence = home.fence

        def claimed(marker: Marker | None) -> Marker:
            nonlocal fence
            refuse_other(self._warehouse, None if marker is None else marker.lake, home.lake_id)
            fence = max(home.fence, 0 if marker is None else marker.fence) + 1
            return Marker(home.lake_id, home.generation, fence, "claimed")

        fail("claim.before_marker")
        swap_marker(self._warehouse, claimed)
        fail("claim.after_marker")
        done = f"the warehouse {self._warehouse.uri} is claimed by this ledger, with fence {fence}"

        def confirm(txn: Txn) -> None:
            places.set_fence(txn, fence)
            audit_decision(txn, about=home.lake_id, kind=DOCTOR, outcome="fixed", reason=done, actor=actor)

        self._ledger.run(confirm)
        return done

    def why_not_there(self) -> StrandError | None:
        """What is wrong when the warehouse is not the lake's, or not mounted; None when it is there."""
        try:
            self.compare()
        except Fenced:
            return None
        except (Conflict, Displaced) as error:
            return error
        return None

    def why_away(self) -> Busy | None:
        """Why the lake's files can't be used now; None when its warehouse is there, so an error is about more.

        Spark, DuckDB and Python each have words of their own for a mount point that is empty, or a bucket that is
        gone. So an error that we don't know is judged by this question.
        """
        try:
            reason = self.why_not_there()
        except TransientError as error:
            reason = error
        except PersonError:
            return None  # a marker that can't be read is there: what it was asked for is the error to tell
        return None if reason is None else Busy(str(reason), reason=WAREHOUSE)

    def _home(self) -> Home:
        with self._ledger.read() as conn:
            return places.read_home(conn)


def agrees(home: Home, marker: Marker | None) -> bool:
    """Whether a marker is what this ledger has left in its warehouse, or is about to leave there."""
    if marker is None:
        return home.fence == 0 and not home.has_rows
    if marker.lake != home.lake_id:
        return False
    if home.fence == 0 and not marker.generation:
        return True  # a lake of format 1 left its id alone
    ahead = home.raising is not None and (marker.fence, marker.op) == (home.fence + 1, home.raising)
    return marker.generation == home.generation and (ahead or (marker.fence == home.fence and home.fence > 0))


def refusal(home: Home, marker: Marker | None, warehouse: ObjectPlace) -> Displaced:
    """Why a marker keeps this lake from writing, and what a person can do."""
    if marker is None:
        return NoMarker(
            f"the warehouse {warehouse.uri} has no marker, though this lake has claimed it: it is not mounted, was "
            "emptied, or is another one. Nothing was written there",
            hint=f"Mount or correct it, and go on. If it was emptied for good, `{CLAIM}` puts the marker back.",
            reason=WAREHOUSE,
            warehouse=warehouse.uri,
        )
    refuse_other(warehouse, marker.lake, home.lake_id)
    if marker.generation == home.generation and marker.fence < home.fence:
        return Fenced(
            f"the warehouse {warehouse.uri} is older than this ledger: its marker has fence {marker.fence}, and this "
            f"ledger has fence {home.fence}. The warehouse was put back, or another folder is mounted",
            hint=f"Mount or correct it, and go on. If this one is to be used, `{CLAIM}` says so, and `strand doctor` "
            "says which files are gone.",
            warehouse=warehouse.uri,
            expected=home.fence,
            actual=marker.fence,
        )
    return Fenced(
        f"another copy of this lake, or a newer ledger, wrote to the warehouse {warehouse.uri}: its marker has fence "
        f"{marker.fence} of generation {marker.generation or '(none)'}, and this ledger has fence {home.fence} of "
        f"generation {home.generation}",
        hint="Stop this copy, and use the other. If this ledger is the one to go on with, stop the other for good: "
        f"`{CLAIM}` takes the warehouse back, and `strand doctor` says which files are gone.",
        warehouse=warehouse.uri,
        expected=home.fence,
        actual=marker.fence,
    )
