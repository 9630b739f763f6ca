"""Where a stream goes on, decided from what this lake knows of it and from what its destination says.

Either side may have gone back: a destination that was restored from an older copy lacks rows, a ledger that was put
back by hand gives old seqs to new rows, and a restore knows that it did. A mark (epoch, seq) always means that the
destination has every row up to it, because a chunk that begins above the mark is refused in every epoch. So a lower
mark is never a matter of opinion: the rows behind it are sent again, under an epoch that neither side has ever used.

Where going on would lose or repeat rows in silence, the answer is that a person is needed, and how to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strandline.model.delivery.generations import are_of_one_backup
from strandline.model.delivery.sinks import Mark, SentChunk, Standing
from strandline.model.values.row_digest import NO_ROWS

AHEAD, DIFFERS, HOLE, RECEIVER, TABLE = "ahead", "differs", "hole", "receiver", "table"
"""Why a stream is stuck: the destination is ahead of this lake, has other rows, wants removed ones, is another one,

or has lost its table.
"""

Recompute = Callable[[int, int], Iterable[str]]
"""The digests that our rows in a range may have had when they were sent; none when it can't be told.

Of an open delivery there is one. Of the log there is one for each schema that the table has had, because a column that
came since with a default, or has another name now, changes what a row looks like and not which row it is.
"""


@dataclass(frozen=True)
class Own:
    """What this lake knows of a stream. `mark` is None when it knows nothing; `end` is where its open delivery ends.

    `acked_epoch` is the highest epoch of which the destination has acked anything, `rewound_epoch` the last that a
    person opened; 0 is none. Retention has removed rows up to `removed_upto`, and a person has said to go on without
    those up to `hole_upto`; rows up to `lacking_upto` are compared with the destination's. `backup_seq` is the backup's
    counter where a restore brought the mark back, or came after the sink was made and knows no mark. `receiver` is the
    lake id that the sink has pinned, and `sink` its name, for the commands that reasons name; `generation` is this
    ledger's own.
    """

    start_seq: int
    last_seq: int
    mark: Mark | None = None
    end: int | None = None
    acked_epoch: int = 0
    rewound_epoch: int = 0
    chunk: SentChunk | None = None
    removed_upto: int = 0
    hole_upto: int = 0
    lacking_upto: int = 0
    backup_seq: int | None = None
    receiver: str | None = None
    generation: str | None = None
    sink: str = "NAME"

    @property
    def epoch(self) -> int:
        """The highest epoch that this lake has ever used here."""
        return max(self.acked_epoch, 0 if self.mark is None else self.mark.epoch)

    @property
    def has_delivered(self) -> bool:
        """Whether the destination should have something of the stream."""
        mark = self.mark
        return mark is not None and (mark.seq > self.start_seq or self.acked_epoch >= mark.epoch)

    @property
    def is_rewinding(self) -> bool:
        """Whether the epoch is a person's, and the destination has acked nothing of it yet: it may begin anywhere."""
        if self.mark is None or self.acked_epoch >= self.mark.epoch:
            return False
        # A ledger of format 1 did not note whether a person began an epoch.
        return self.rewound_epoch == self.mark.epoch or (self.acked_epoch == 0 and self.mark.epoch > 1)


@dataclass(frozen=True)
class GoOn:
    """The unit goes on: the destination has it up to `confirmed`; `chunk` is the last that it has with rows."""

    confirmed: int
    chunk: SentChunk | None = None


@dataclass(frozen=True)
class Begin:
    """A stream begins behind this mark; what was open there is cancelled, and dead letters above it are closed.

    `note` is what a person should hear of it. Of the rows up to `lacking_upto` only those are sent that the destination
    lacks.
    """

    mark: Mark
    chunk: SentChunk | None = None
    note: str | None = None
    lacking_upto: int = 0


@dataclass(frozen=True)
class Stuck:
    """It can't go on by itself: why, and the command that goes on."""

    kind: str
    reason: str


Decision = GoOn | Begin | Stuck


def decide(own: Own, standing: Standing, recompute: Recompute) -> Decision:
    """What happens next in a stream whose destination has just been asked where it is."""
    stranger = _stranger(own, standing)
    if stranger is not None:
        return stranger
    if own.backup_seq is not None:
        return _after_restore(own, standing, own.backup_seq, recompute)
    if own.mark is None:
        return _without_mark(own, standing, recompute)
    return _with_mark(own, own.mark, standing, recompute)


def _stranger(own: Own, standing: Standing) -> Stuck | None:
    """Another lake than the one that the sink has delivered to, or one that can't be told from another."""
    if own.receiver is not None and standing.lake is not None and own.receiver != standing.lake:
        return Stuck(
            RECEIVER,
            f"the receiver is the lake {standing.lake}, and this sink delivers to {own.receiver}: another server "
            f"answers at this address, or the receiver was made anew. {_when_back(own)}",
        )
    if standing.missing is not None and own.has_delivered:
        return Stuck(TABLE, f"{standing.missing}. `strand sink retry {own.sink}` goes on when the table is back")
    unproven = standing.is_lake and (standing.lake is None or own.receiver is None)
    if standing.mark is None and own.has_delivered and unproven:
        return Stuck(
            RECEIVER,
            "the receiver knows nothing of this stream, and can't be told from another server: it was made anew, or "
            f"it is the wrong one. {_when_back(own)}",
        )
    return None


def _when_back(own: Own) -> str:
    return (
        f"`strand sink retry {own.sink}` goes on when the right one is back; `strand sink retry {own.sink} "
        "--accept-receiver` takes this one, and sends from the sink's start"
    )


def _after_restore(own: Own, standing: Standing, backup_seq: int, recompute: Recompute) -> Decision:
    """Rows that were appended after the backup are lost, and the destination may have them under their seqs.

    Its mark means that it has every row up to there of the ledger that set it. That this one's rows up to the backup's
    end are the same is certain only where that ledger came from this backup too, which its generation says. So rows
    above our own watermark are compared one by one where the destination can say what it has; all rows, where its mark
    is of an epoch, and of a ledger, that we know nothing of.
    """
    mark, theirs = own.mark, standing.mark
    epoch = max(own.epoch, 0 if theirs is None else theirs.epoch) + 1
    if theirs is None:
        keeps = mark is not None and not standing.exact
        return _back(own, standing, Mark(epoch, mark.seq if mark and keeps else own.start_seq))
    seq = max(min(theirs.seq, backup_seq), own.start_seq)
    if mark is not None and not standing.exact:
        seq = max(seq, mark.seq)
    if mark is not None and own.is_rewinding and theirs.epoch < mark.epoch and mark.seq <= seq:
        return Begin(Mark(epoch, mark.seq), standing.chunk)
    if not are_of_one_backup(standing.sender, own.generation):
        if not standing.reads_back and theirs.epoch > max(own.epoch, 1) and (mark is None or mark.seq < seq):
            return _ahead(own, theirs)
        if standing.reads_back and (theirs.epoch > own.epoch or _is_other(own, standing.chunk, backup_seq, recompute)):
            return _begin(own, standing, Mark(epoch, own.start_seq))
    if standing.reads_back and mark is not None and mark.seq < seq:
        return _begin(own, standing, Mark(epoch, mark.seq))
    return _back(own, standing, Mark(epoch, seq))


def _is_other(own: Own, chunk: SentChunk | None, upto: int, recompute: Recompute) -> bool:
    """Whether the last rows of the destination are certainly not those that this lake has under their seqs."""
    if chunk is None or chunk == own.chunk or chunk.until > upto:
        return False
    if chunk.since < max(own.removed_upto, own.start_seq):
        return False
    return _contradicts(chunk, recompute(chunk.since, chunk.until))


def _without_mark(own: Own, standing: Standing, recompute: Recompute) -> Decision:
    """A new sink, or one whose mark was lost: the destination's word counts, if its rows are ours."""
    theirs, chunk = standing.mark, standing.chunk
    if theirs is None:
        return Begin(Mark(own.epoch + 1, own.start_seq))
    if theirs.seq > own.last_seq:
        return _ahead(own, theirs)
    if standing.is_lake and standing.sender is None and chunk is None and own.epoch == 0:
        return _unknown(own, standing, theirs)
    is_whole = chunk is not None and chunk.since >= max(own.removed_upto, own.start_seq)
    if chunk is not None and is_whole and _contradicts(chunk, recompute(chunk.since, chunk.until)):
        return _differs(own, chunk)
    if _passed_over(standing, own.start_seq, recompute):
        return _unsent(own, theirs)
    epoch = theirs.epoch if own.epoch == 0 else max(theirs.epoch, own.epoch) + 1
    return _begin(own, standing, Mark(epoch, max(theirs.seq, own.start_seq)))


def _unknown(own: Own, standing: Standing, theirs: Mark) -> Begin | Stuck:
    """A receiver has our stream, nothing says which rows, and this ledger has never sent any of it."""
    if standing.reads_back:
        return _begin(own, standing, Mark(theirs.epoch + 1, own.start_seq))
    return Stuck(
        AHEAD,
        f"the receiver has seqs up to {theirs.seq} of this stream, and this lake has sent none: its ledger was put "
        "back from an older copy, and the receiver is of an older version that can't say which rows it has. "
        f"`strand sink continue {own.sink}` sends all of them; once the receiver is upgraded, those that it lacks",
    )


def _with_mark(own: Own, mark: Mark, standing: Standing, recompute: Recompute) -> Decision:
    theirs = standing.mark
    end = mark.seq if own.end is None else own.end
    if theirs is None:
        if mark.seq == own.start_seq or not standing.exact:
            return GoOn(mark.seq)
        return _back(own, standing, Mark(own.epoch + 1, own.start_seq))
    if theirs.epoch > mark.epoch or (theirs.epoch == mark.epoch and theirs.seq > end):
        return _ahead(own, theirs)
    if not standing.exact:
        return GoOn(mark.seq)
    if theirs.epoch == mark.epoch and theirs.seq >= mark.seq:
        return _compared(own, mark, theirs, standing, recompute)
    is_new = theirs.epoch < mark.epoch and own.acked_epoch < mark.epoch
    is_below = own.is_rewinding or own.lacking_upto >= theirs.seq
    if is_new and (mark.seq == theirs.seq or (is_below and mark.seq < theirs.seq)):
        return GoOn(mark.seq)
    if theirs.seq > own.last_seq:
        return _ahead(own, theirs)
    if theirs.epoch < own.epoch and _is_other(own, standing.chunk, own.last_seq, recompute):
        # The destination was put back to rows of a ledger that this one is not: its mark says nothing about ours.
        if standing.reads_back:
            return _begin(own, standing, Mark(own.epoch + 1, own.start_seq))
        assert standing.chunk is not None
        return _differs(own, standing.chunk)
    lost = theirs.epoch < own.rewound_epoch <= own.acked_epoch
    note = (
        f"the destination went back to seq {theirs.seq} of epoch {theirs.epoch}, before the rewind that opened epoch "
        f"{own.rewound_epoch}: what that sent again is not sent a third time"
    )
    return _back(own, standing, Mark(own.epoch + 1, theirs.seq), note if lost else None)


def _compared(own: Own, mark: Mark, theirs: Mark, standing: Standing, recompute: Recompute) -> Decision:
    """Both have come equally far, or the destination further within the open delivery: do they mean the same rows?"""
    chunk = standing.chunk
    if chunk is None and standing.is_lake and standing.reads_back and standing.sender is None and theirs.seq > mark.seq:
        # An older version has sent some of the unit, and may have had its ledger put back before: they are compared.
        return _begin(own, standing, Mark(own.epoch + 1, mark.seq))
    if chunk is not None and chunk.until <= mark.seq:
        if own.chunk is not None and own.chunk != chunk:
            return _differs(own, chunk)
    elif chunk is not None and (chunk.since < mark.seq or _contradicts(chunk, recompute(chunk.since, chunk.until))):
        return _differs(own, chunk)
    if _passed_over(standing, mark.seq, recompute):
        return _unsent(own, theirs)
    return GoOn(theirs.seq, chunk)


def _contradicts(chunk: SentChunk, digests: Iterable[str]) -> bool:
    """Whether none of these is the chunk's. One that was made in another way, by another version, proves nothing."""
    is_known = False
    for digest in digests:
        if digest == chunk.digest or _kind(digest) != _kind(chunk.digest):
            return False
        is_known = True
    return is_known


def _passed_over(standing: Standing, since: int, recompute: Recompute) -> bool:
    """Whether we have rows where the destination's mark has moved without any: withheld ones of another time.

    One that says no last rows has got none, if what sent to it would have said them.
    """
    mark, chunk = standing.mark, standing.chunk
    if mark is None or (chunk is None and standing.sender is None):
        return False
    since = since if chunk is None else max(since, chunk.until)
    return mark.seq > since and _contradicts(SentChunk(since, mark.seq, NO_ROWS), recompute(since, mark.seq))


def _kind(digest: str) -> str:
    return digest.partition(":")[0]


def _begin(own: Own, standing: Standing, mark: Mark, note: str | None = None) -> Begin:
    """Begin at a mark by ourselves: nothing that the destination has is to arrive again."""
    return Begin(mark, standing.chunk, note, has_upto(own, standing))


def has_upto(own: Own, standing: Standing) -> int:
    """The seq up to which the destination may have rows of ours; 0 where it has none, or can't say which.

    Its mark alone does not tell: an epoch that began lower has taken it back, and the rows above it have stayed. Above
    our own counter there is nothing of ours, and what a restored ledger appends it has not got yet.
    """
    if standing.mark is None or not standing.reads_back:
        return 0
    return max(standing.mark.seq, own.last_seq if own.backup_seq is None else own.backup_seq)


def _back(own: Own, standing: Standing, mark: Mark, note: str | None = None) -> Begin | Stuck:
    """Begin at a mark that may lie below our own, unless rows behind it are gone."""
    behind = own.mark is not None and mark.seq < own.mark.seq
    if behind and mark.seq < own.removed_upto and own.hole_upto < own.removed_upto:
        return Stuck(
            HOLE,
            f"the destination wants rows behind seq {mark.seq}, and retention has removed some up to "
            f"{own.removed_upto}: they can't be sent again. `strand sink continue {own.sink} --past-hole` sends "
            "those that are left",
        )
    return _begin(own, standing, mark, note)


def _ahead(own: Own, theirs: Mark) -> Stuck:
    ours = own.start_seq if own.mark is None else own.mark.seq
    return Stuck(
        AHEAD,
        f"the destination has seqs up to {theirs.seq} in epoch {theirs.epoch}, and this lake delivered up to {ours}: "
        "its ledger was put back from an older copy, and its rows would be taken for old ones. "
        f"`strand sink continue {own.sink}` sends those that the destination lacks",
    )


def _differs(own: Own, chunk: SentChunk) -> Stuck:
    return _others(own, f"the destination has other rows in ({chunk.since}, {chunk.until}] than this lake")


def _unsent(own: Own, theirs: Mark) -> Stuck:
    return _others(own, f"the destination has come to seq {theirs.seq} without rows that this lake has before it")


def _others(own: Own, what: str) -> Stuck:
    return Stuck(
        DIFFERS,
        f"{what}: the ledger of one of them was put back from an older copy, and rows would be taken for old ones. "
        f"`strand sink continue {own.sink}` sends those that the destination lacks",
    )


def continued(own: Own, standing: Standing, stuck: Stuck) -> Mark:
    """Where a stream goes on by a person's word, under an epoch that neither side has used.

    Past a hole it begins at the destination's mark, so that rows in the hole that are left are sent. Otherwise at our
    own: the destination's mark says nothing about our rows. One that has been through an epoch that we know nothing of,
    or lies behind us with other rows, may lack any of ours: all are compared.
    """
    theirs = standing.mark
    epoch = max(own.epoch, 0 if theirs is None else theirs.epoch) + 1
    if stuck.kind == HOLE:
        seq = own.start_seq if theirs is None else theirs.seq
        return Mark(epoch, seq if own.backup_seq is None else max(min(seq, own.backup_seq), own.start_seq))
    is_foreign = theirs is not None and (
        theirs.epoch > own.epoch or (own.mark is not None and theirs.seq < own.mark.seq)
    )
    return Mark(epoch, own.start_seq if own.mark is None or (is_foreign and standing.reads_back) else own.mark.seq)
