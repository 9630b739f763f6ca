"""The oracle: what was acked at the source against what the log, the receiver, the blobs and the copy hold.

The log must have every acked row that no ledger took with it when it went back, and that retention has not removed. A
destination must have whatever the log has, once; and of the timed table also what retention has removed from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from strandline.lake import Lake
from tests.soak.losses import VERSION, Losses
from tests.soak.scene import LISTS, TABLES, TIMED, Scene
from tests.soak.writer import read_calls, row_of

COLUMNS = ["part_id", "source", "n", "body"]


@dataclass(frozen=True)
class Offered:
    """By table: the rows that were acked, those of calls whose answer was lost, and those left out as too old."""

    acked: dict[str, set[str]]
    unanswered: dict[str, set[str]]
    calls: int
    lost_calls: int
    too_old: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """One destination, all tables together. A row of a call whose answer was lost may be there, once.

    Of rows that a ledger took with it when it went back, `gone` counts those that are not in the log, and at a
    destination those that it had got before. `retained` are old rows that are not there any more, or that nobody could
    send again after the destination itself was put back.
    """

    acked: int
    stored: int
    lost: int
    repeated: int
    altered: int
    from_nowhere: int
    answer_lost: int
    gone: int = 0
    retained: int = 0

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, repeated, altered or invented."""
        return self.lost == self.repeated == self.altered == self.from_nowhere == 0

    def document(self) -> dict[str, int]:
        """For programs."""
        return asdict(self)


def _no_rows() -> dict[str, set[str]]:
    return {table: set() for table in TABLES}


def read_offered(scene: Scene, seed: int, writers: Iterable[str]) -> Offered:
    """What the writers wrote down."""
    acked, unanswered, too_old = _no_rows(), _no_rows(), _no_rows()
    calls = lost = 0
    for writer in writers:
        record = read_calls(scene.calls(writer), seed, writer)
        for number, call in record.offered.items():
            calls += 1
            answered = number in record.too_old
            lost += not answered
            kept = call.kept_ids(record.too_old[number]) if answered else None
            if kept is None:  # an answer that leaves out some young rows and not all does not say which
                unanswered[call.table].update(call.part_ids())
            else:
                acked[call.table].update(kept)
                too_old[call.table].update(set(call.part_ids()).difference(kept))
    for table in TABLES:
        unanswered[table] -= acked[table]
        too_old[table] -= acked[table]
    return Offered(acked, unanswered, calls, lost, too_old)


@dataclass(frozen=True)
class Place:
    """What is compared: a destination with the log, or the log itself when `log` is None."""

    name: str
    log: Mapping[str, set[str]] | None = None


LOG = Place("log")


def judge(offered: Offered, found: Mapping[str, list[pa.Table]], place: Place = LOG, losses: Losses | None = None
          ) -> Verdict:  # fmt: skip
    """Compare one place's rows, by table, with what was offered, and a destination's with what the log has."""
    total: Counter[str] = Counter()
    for table in TABLES:
        rows = [row for part in found.get(table, []) for row in part.select(COLUMNS).to_pylist()]
        total += _judge_table(table, offered, rows, place, losses or Losses())
    names = [one.name for one in fields(Verdict)]
    return Verdict(*(total[name] for name in names))


def _judge_table(table: str, offered: Offered, rows: list[Any], place: Place, losses: Losses) -> Counter[str]:
    there = Counter(row["part_id"] for row in rows)
    acked, maybe = offered.acked.get(table, set()), offered.unanswered.get(table, set())
    gone, ever_gone = losses.rows[table], losses.ever_rows[table]
    owed = acked - gone
    unknown = there.keys() - acked - maybe
    retained: set[str] = set()
    if place.log is None:
        if table == TIMED:  # what retention removes was delivered everywhere: each destination is asked for it
            retained = owed - there.keys()
    else:
        log = place.log.get(table, set())
        if table == TIMED:
            retained = (losses.holes.get(place.name, set()) - log) - there.keys()
        else:
            unknown |= there.keys() - log - ever_gone
        owed = owed | log
    return Counter(
        acked=len(acked),
        stored=len(rows),
        lost=len(owed - there.keys() - retained),
        repeated=len(rows) - len(there),
        altered=sum(row != row_of(row["part_id"]) for row in rows),
        from_nowhere=len(unknown),
        answer_lost=len(there.keys() & maybe),
        gone=len(gone - there.keys() if place.log is None else there.keys() & gone),
        retained=len(retained & owed),
    )


def verdicts(scene: Scene, offered: Offered, losses: Losses) -> dict[str, Verdict]:
    """Read every destination back, each in its own way."""
    written = _lake(scene.lake)
    log = {table: {i for part in parts for i in part["part_id"].to_pylist()} for table, parts in written.items()}
    destinations = {"receiver": _lake(scene.receiver), "blobs": _blobs(scene), "copy": _copy(scene)}
    return {
        "log": judge(offered, written, LOG, losses),
        **{name: judge(offered, found, Place(name, log), losses) for name, found in destinations.items()},
    }


def _lake(root: Any) -> dict[str, list[pa.Table]]:
    with Lake(root, read_only=True) as lake:
        view = lake.view()
        return {table: [view.sql(f"select {', '.join(COLUMNS)} from {table}").arrow()] for table in TABLES}


def _blobs(scene: Scene) -> dict[str, list[pa.Table]]:
    import pyarrow.parquet as pq

    return {
        table: [
            pq.ParquetFile(path).read(columns=COLUMNS)
            for path in sorted((scene.blobs / table).rglob("*.parquet"))
            if not path.name.startswith(".")
        ]
        for table in TABLES
    }


def _copy(scene: Scene) -> dict[str, list[pa.Table]]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("strand", uri=f"sqlite:///{scene.catalog}", warehouse=scene.copied)
    present = {name[-1] for space in catalog.list_namespaces() for name in catalog.list_tables(space)}
    return {
        table: [catalog.load_table(f"lake.{table}").scan(selected_fields=tuple(COLUMNS)).to_arrow()]
        if table in present
        else []
        for table in TABLES
    }


def feeds(scene: Scene, losses: Losses) -> list[str]:
    """Destinations that don't have every version of the lists on main once, with its commit."""
    import pyarrow.parquet as pq
    from pyiceberg.catalog.sql import SqlCatalog

    with Lake(scene.lake, read_only=True) as lake:
        written = lake.view().sql(f'select {", ".join(VERSION)} from "{LISTS}$log"').rows()
    with Lake(scene.receiver, read_only=True) as lake:
        query = f"select id, changes, _origin_removed, _origin_commit, _origin_seq from {LISTS}"
        found = {"receiver": lake.view().sql(query).rows()}
    objects = [path for path in (scene.blobs / LISTS).rglob("*.parquet") if not path.name.startswith(".")]
    found["blobs"] = [row for path in objects for row in _tuples(pq.ParquetFile(path).read(columns=VERSION), VERSION)]
    catalog = SqlCatalog("strand", uri=f"sqlite:///{scene.catalog}", warehouse=scene.copied)
    found["copy"] = []
    if catalog.table_exists(f"lake.{LISTS}"):  # it is not there when nothing was delivered in time
        copied = catalog.load_table(f"lake.{LISTS}").scan(selected_fields=tuple(VERSION)).to_arrow()
        found["copy"] = _tuples(copied, VERSION)
    return [text for place, rows in found.items() for text in judge_feed(place, written, rows, losses)]


def judge_feed(
    place: str, written: Sequence[tuple[Any, ...]], rows: Sequence[tuple[Any, ...]], losses: Losses
) -> list[str]:
    """What is wrong with a destination's versions: one that is missing, there twice, or from nowhere."""
    there, due = Counter(rows), set(written)
    wrong = {
        "missing": len(due - there.keys()),
        "there twice": sum(times > 1 for times in there.values()),
        "from nowhere": len(there.keys() - due - losses.ever_versions),
    }
    return [f"{place}: of {len(due):,} versions of {LISTS} {n:,} are {what}" for what, n in wrong.items() if n]


def _tuples(table: pa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def overlaps(scene: Scene) -> list[str]:
    """Objects of one stream whose ranges have a seq in common."""
    from strandline.model.delivery.object_names import parse_object_name

    found: list[str] = []
    folders = {path.parent for path in scene.blobs.rglob("*.parquet") if parse_object_name(path.name)}
    for folder in sorted(folders):
        last = 0
        for path in sorted(folder.glob("*.parquet")):
            name = parse_object_name(path.name)
            if name is not None:
                if name.since < last:
                    found.append(f"{path} begins before {last}")
                last = name.until
    return found
