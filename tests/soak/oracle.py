"""The oracle: what was acked at the source against what the log, the receiver, the blobs and the copy hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from strandline.lake import Lake
from tests.soak.scene import LISTS, TABLES, Scene
from tests.soak.writer import Call, read_calls, row_of

COLUMNS = ["part_id", "source", "n", "body"]


@dataclass(frozen=True)
class Offered:
    """By table: the rows that were acked, and those of calls whose answer was lost."""

    acked: dict[str, set[str]]
    unanswered: dict[str, set[str]]
    calls: int
    lost_calls: int


@dataclass(frozen=True)
class Verdict:
    """One destination, all tables together. A row of a call whose answer was lost may be there, once."""

    acked: int
    stored: int
    lost: int
    repeated: int
    altered: int
    from_nowhere: int
    answer_lost: int

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, repeated, altered or invented."""
        return self.lost == self.repeated == self.altered == self.from_nowhere == 0

    def document(self) -> dict[str, int]:
        """For programs."""
        return asdict(self)


def read_offered(scene: Scene, seed: int, writers: Iterable[str]) -> Offered:
    """What the writers wrote down."""
    acked: dict[str, set[str]] = {table: set() for table in TABLES}
    unanswered: dict[str, set[str]] = {table: set() for table in TABLES}
    calls = lost = 0
    for writer in writers:
        offered, told = read_calls(scene.calls(writer))
        for number in set(offered):
            call = Call(seed, writer, number)
            calls += 1
            lost += number not in told
            (acked if number in told else unanswered)[call.table].update(call.part_ids())
    for table in TABLES:
        unanswered[table] -= acked[table]
    return Offered(acked, unanswered, calls, lost)


def judge(offered: Offered, found: dict[str, list[pa.Table]]) -> Verdict:
    """Compare one destination's rows, by table, with what was offered."""
    total: Counter[str] = Counter()
    for table in TABLES:
        rows = [row for part in found[table] for row in part.select(COLUMNS).to_pylist()]
        there = Counter(row["part_id"] for row in rows)
        acked, maybe = offered.acked[table], offered.unanswered[table]
        total += Counter(
            acked=len(acked),
            stored=len(rows),
            lost=len(acked - there.keys()),
            repeated=len(rows) - len(there),
            altered=sum(row != row_of(row["part_id"]) for row in rows),
            from_nowhere=len(there.keys() - acked - maybe),
            answer_lost=len(there.keys() & maybe),
        )
    names = ("acked", "stored", "lost", "repeated", "altered", "from_nowhere", "answer_lost")
    return Verdict(*(total[name] for name in names))


def verdicts(scene: Scene, offered: Offered) -> dict[str, Verdict]:
    """Read every destination back, each in its own way."""
    return {
        "log": judge(offered, _lake(scene.lake)),
        "receiver": judge(offered, _lake(scene.receiver)),
        "blobs": judge(offered, _blobs(scene)),
        "copy": judge(offered, _copy(scene)),
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


def feeds(scene: Scene) -> list[str]:
    """Destinations that don't have every version of the lists on main once, with its commit."""
    import pyarrow.parquet as pq
    from pyiceberg.catalog.sql import SqlCatalog

    names = ["id", "changes", "_removed", "_commit", "_seq"]
    with Lake(scene.lake, read_only=True) as lake:
        written = lake.view().sql(f'select {", ".join(names)} from "{LISTS}$log"').rows()
    with Lake(scene.receiver, read_only=True) as lake:
        query = f"select id, changes, _origin_removed, _origin_commit, _origin_seq from {LISTS}"
        found = {"receiver": lake.view().sql(query).rows()}
    objects = [path for path in (scene.blobs / LISTS).rglob("*.parquet") if not path.name.startswith(".")]
    found["blobs"] = [row for path in objects for row in _tuples(pq.ParquetFile(path).read(columns=names), names)]
    catalog = SqlCatalog("strand", uri=f"sqlite:///{scene.catalog}", warehouse=scene.copied)
    copied = catalog.load_table(f"lake.{LISTS}").scan(selected_fields=tuple(names)).to_arrow()
    found["copy"] = _tuples(copied, names)
    return [
        f"{place}: of {len(written):,} versions of {LISTS} {len(rows):,} are there, and they are not the same"
        for place, rows in found.items()
        if sorted(rows, key=repr) != sorted(written, key=repr)
    ]


def _tuples(table: pa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def overlaps(scene: Scene) -> list[str]:
    """Objects of one stream whose ranges have a seq in common."""
    from strandline.model.object_names import parse_object_name

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
