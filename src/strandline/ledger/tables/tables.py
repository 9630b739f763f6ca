"""Branches, tables, their schemas and their heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Row, and_, bindparam, func, insert, select, update

from strandline.errors import BadRequest, Conflict, NotFound, TableExists, TableMoved, nearest
from strandline.failpoints import fail
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared, together
from strandline.ledger.history.commits import write_commit
from strandline.ledger.ledger import MAIN, Ledger, Txn
from strandline.ledger.rows.batches import REF_COLUMNS
from strandline.model.history.names import Holder
from strandline.model.ids import new_id
from strandline.model.schema.constraints import Reference
from strandline.model.schema.schema import Schema, from_json
from strandline.model.tables import STATE, BatchRef, Books, BranchTable, Dedupe, Head, Kind, Table, TableSettings

# Not the name of the catalog: `strand.messages` would be read as catalog and table.
NAMESPACE = "lake"


_branch = db.branches.c
_HOLDER = select(_branch.branch_id).where(_branch.deleted_at_us.is_(None), _branch.name == bindparam("b_name"))
_ID_OF_HOLDER, _ID_OF_BRANCH = Prepared(_HOLDER), Prepared(_HOLDER.where(_branch.kind != "tag"))


def branch_id(conn: Connection, name: str) -> str:
    """The id behind a branch's name; behind a tag's too where it is a `Holder`."""
    statement = _ID_OF_HOLDER if isinstance(name, Holder) else _ID_OF_BRANCH
    (rows,) = together(conn, [Bound(statement, {"b_name": str(name)})])
    if not rows:
        living = select(_branch.name).where(_branch.deleted_at_us.is_(None), _branch.kind == "branch")
        names = conn.execute(living).scalars()
        raise NotFound(f"there is no branch {name!r}", hint=nearest(name, names), branch=name)
    return str(rows[0][0])


def refuse_protected(name: str, *, protected: bool) -> None:
    """Conflict when a branch is protected and this would change it other than by a merge."""
    if protected:
        raise Conflict(
            f"branch {name!r} is protected",
            kind="branch_protected",
            hint=f"Change another branch and merge it, or lift it with `strand branch protect {name} --off`.",
            expected=None,
            actual=name,
        )


def create_table(
    ledger: Ledger,
    name: str,
    schema: Schema,
    *,
    branch: str,
    actor: str,
    row_key: Sequence[str] = (),
    key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    dedupe: Dedupe = "table",
    extra: bool = False,
    seen: Sequence[BranchTable] = (),
) -> Table:
    """Describe a new table: keyed with a `key`, else a log table. `seen` are those whose rows it was judged by.

    Its Iceberg table is made by the first operation that writes it.
    """
    with ledger.write() as txn:
        table = new_table(txn, name, row_key=row_key, key=key, partition_by=partition_by, dedupe=dedupe, extra=extra)
        on_branch = branch_id(txn.conn, branch)
        if key:
            refuse_protected(branch, protected=is_protected(txn.conn, on_branch))
        read_shown(txn.conn, branch, _others(schema, name), tails=False)  # one may have been dropped meanwhile
        refuse_changed(txn.conn, seen)
        commit = write_commit(
            txn, branch, kind="create_table", actor=actor, message=f"create table {name}", tables={name: 0}
        )
        insert_table(txn, table, schema.fresh(), on_branch, commit.seq)
        fail("table.before_commit")
    fail("table.after_commit")
    return table


def refuse_changed(conn: Connection, seen: Sequence[BranchTable]) -> None:
    """Conflict where a table has other rows than those that were looked at."""
    for branch_table in seen:
        now = read_head(conn, branch_table.head.branch_id, branch_table.head.table_id)
        if (now.last_seq, now.barrier) != (branch_table.head.last_seq, branch_table.head.barrier):
            raise TableMoved(
                f"rows of {branch_table.table.name!r} were changed while they were looked at",
                hint="Nothing was changed. Do it again, at a quieter moment.",
                expected=branch_table.head.last_seq,
                actual=now.last_seq,
            )


def _others(schema: Schema, name: str) -> list[str]:
    """The other tables that a new one refers to."""
    named = [constraint.table for constraint in schema.constraints if isinstance(constraint, Reference)]
    return [other for other in named if other.lower() != name.lower()]


def is_protected(conn: Connection, on_branch: str) -> bool:
    """Whether a branch changes by merges alone."""
    return bool(conn.execute(select(db.branches.c.protected).where(db.branches.c.branch_id == on_branch)).scalar_one())


def raise_shape(txn: Txn, on_branch: str) -> None:
    """Every change of a branch's tables or schemas does this: mutations that were judged by others start over."""
    branch = db.branches.c
    txn.conn.execute(update(db.branches).where(branch.branch_id == on_branch).values(shape=branch.shape + 1))


def new_table(
    txn: Txn,
    name: str,
    *,
    row_key: Sequence[str] = (),
    key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    dedupe: Dedupe = "table",
    extra: bool = False,
) -> Table:
    """A table that is not written down yet; a conflict if there is one of its name."""
    _refuse_existing(txn.conn, name)
    kind: Kind = "keyed" if key else "log"
    return Table(
        table_id=new_id(),
        name=name,
        kind=kind,
        iceberg_name=f"{NAMESPACE}.{name.lower()}",
        row_key=tuple(row_key),
        key=tuple(key),
        partition_by=tuple(partition_by),
        dedupe=dedupe,
        extra=extra,
        created_at_us=txn.at_us,
    )


def _refuse_existing(conn: Connection, name: str) -> None:
    existing = conn.execute(select(db.tables.c.name).where(db.tables.c.folded_name == name.lower())).scalar()
    if existing is None:
        return
    what, hint = f"there is a table {existing!r} already", "Pick another name."
    table = find_table(conn, str(existing))
    if table.key:
        hint = (
            "Pick another name; one that was dropped keeps its own, and is added again by `strand schema apply FILE`."
        )
    elif (branch_table := read_branch_tables(conn, MAIN, [table.name], tails=False)[0]).is_dropped:
        what = f"the log table {existing!r} was dropped, and its past keeps the name"
        dropped = dropped_by(conn, branch_table)
        hint = f"Pick another name. Commit {dropped} dropped it; `--at` an earlier commit shows its rows."
    raise TableExists(what, hint=hint, expected=None, actual=existing)


def insert_table(txn: Txn, table: Table, schema: Schema, on_branch: str, number: int) -> None:
    """Write down a table that the commit of this number makes on a branch; with it the state of a keyed one."""
    _insert(txn, table, on_branch, number)
    insert_schema(txn, on_branch, table.table_id, number, schema)
    if table.key:
        _insert(txn, table.state, on_branch, number)


def _insert(txn: Txn, table: Table, on_branch: str, number: int) -> None:
    txn.conn.execute(
        insert(db.tables).values(
            table_id=table.table_id,
            name=table.name,
            folded_name=table.name.lower(),
            kind=table.kind,
            iceberg_name=table.iceberg_name,
            row_key=_json(table.row_key),
            key=_json(table.key),
            partition_by=_json(table.partition_by),
            dedupe=table.dedupe,
            extra=int(table.extra),
            inbound=int(table.inbound),
            created_at_us=table.created_at_us,
            pins=0,
            expired_upto_us=0,
            settings=_json(asdict(table.settings)),
        )
    )
    txn.conn.execute(
        insert(db.heads).values(
            branch_id=on_branch,
            table_id=table.table_id,
            version=0,
            last_seq=0,
            schema_version=number,
            barrier=0,
            swept_seq=0,
            kept_from=0,
            rows_acked=0,
            rows_log=0,
            rows_dropped=0,
            rows_pruned=0,
            rows_quarantined=0,
        )
    )


def insert_schema(txn: Txn, on_branch: str, table_id: str, number: int, schema: Schema) -> None:
    """Write down what the commit of this number makes of a table's schema."""
    txn.conn.execute(
        insert(db.schemas).values(
            table_id=table_id, version=number, branch_id=on_branch, definition=_json(schema.to_json())
        )
    )
    raise_shape(txn, on_branch)


def set_schema(txn: Txn, on_branch: str, table_id: str, version: int) -> None:
    """Let a table's rows be read and written under another version of its schema, and earlier changes start over."""
    head = db.heads.c
    txn.conn.execute(
        update(db.heads)
        .where(head.branch_id == on_branch, head.table_id == table_id)
        .values(schema_version=version, barrier=head.barrier + 1)
    )


def find_table(conn: Connection, name: str) -> Table:
    """The table behind a name; an unknown one is an error that suggests the nearest."""
    row = conn.execute(select(db.tables).where(db.tables.c.folded_name == name.lower())).one_or_none()
    if row is None:
        names = conn.execute(select(db.tables.c.name).where(_OWN)).scalars()
        raise NotFound(f"there is no table {name!r}", hint=nearest(name, names), table=name)
    return _table(row)


_OWN = db.tables.c.kind != "state"
"""The tables that users have made: not the states that we keep of them."""


def list_tables(conn: Connection) -> list[Table]:
    """Every table, by name, and the states of the keyed ones."""
    return [_table(row) for row in conn.execute(select(db.tables).order_by(db.tables.c.folded_name))]


def read_branch_tables(
    conn: Connection, branch: str, names: Sequence[str] | None = None, *, tails: bool = True
) -> list[BranchTable]:
    """Tables as this database snapshot has them: heads, schemas, tails, reservations. All of them, or those named.

    A log table has one history, main's, on whatever branch it is looked for. The state of a keyed table is found with
    it, or by its own name. A caller that reads no rows needs no `tails`. Dropped tables are among them: their history
    is maintained like any other. What shows tables, or writes to them, takes `read_shown`.
    """
    on_branch = branch_id(conn, branch)
    if names is None:
        return read_branch_tables_of(conn, on_branch, tails=tails)
    table_ids = _tables_of(conn, on_branch)
    tables = [find_table(conn, name.removesuffix(STATE)) for name in names]
    for table in tables:
        if table.table_id not in table_ids:
            raise NotFound(f"branch {branch!r} has no table {table.name!r}", hint="It was made on another branch.")
    branch_tables = zip(names, _branch_tables(conn, on_branch, tables, tails=tails), strict=True)
    return [
        branch_table.folded if name.endswith(STATE) and branch_table.folded is not None else branch_table
        for name, branch_table in branch_tables
    ]


def read_shown(
    conn: Connection, branch: str, names: Sequence[str] | None = None, *, tails: bool = True
) -> list[BranchTable]:
    """The same without dropped tables: one that is named is an error that names the commit that dropped it."""
    branch_tables = read_branch_tables(conn, branch, names, tails=tails)
    for branch_table in branch_tables if names is not None else ():
        if branch_table.is_dropped:
            raise not_shown(branch_table.table.name, dropped_by(conn, branch_table))
    return [branch_table for branch_table in branch_tables if not branch_table.is_dropped]


def dropped_by(conn: Connection, branch_table: BranchTable) -> str:
    """The commit that dropped a table: its schema has that one's number."""
    commit = db.commits.c
    return str(
        conn.execute(select(commit.commit_id).where(commit.seq == branch_table.head.schema_version)).scalar_one()
    )


def not_shown(name: str, commit_id: str) -> NotFound:
    """The error of a caller that asks for a table that was dropped."""
    hint = f"Commit {commit_id} dropped it; `--at` an earlier commit shows it."
    return NotFound(f"there is no table {name!r} any more", hint=hint, table=name, commit=commit_id)


def read_branch_tables_of(conn: Connection, on_branch: str, *, tails: bool = True) -> list[BranchTable]:
    """All tables of a branch or tag, by its id; dropped ones too."""
    table_ids = _tables_of(conn, on_branch)
    own = [table for table in list_tables(conn) if table.kind != "state" and table.table_id in table_ids]
    return _branch_tables(conn, on_branch, own, tails=tails)


def _tables_of(conn: Connection, on_branch: str) -> set[str]:
    own = select(db.heads.c.table_id).where(db.heads.c.branch_id == on_branch)
    logs = select(db.tables.c.table_id).where(db.tables.c.kind == "log")
    return set(conn.execute(own.union(logs)).scalars())


def _branch_tables(
    conn: Connection, on_branch: str, tables: Sequence[Table], *, tails: bool = True
) -> list[BranchTable]:
    main = branch_id(conn, MAIN)
    return [_branch_table(conn, on_branch if table.key else main, table, tails) for table in tables]


def _branch_table(conn: Connection, on_branch: str, table: Table, tails: bool) -> BranchTable:
    head = read_head(conn, on_branch, table.table_id)
    reserved = conn.execute(
        select(func.min(db.reservations.c.first_seq)).where(
            db.reservations.c.branch_id == on_branch, db.reservations.c.table_id == table.table_id
        )
    ).scalar()
    schemas = read_schemas(conn, table.table_id)
    branch_table = BranchTable(
        table=table,
        head=head,
        schema=schemas[head.schema_version],
        schemas=schemas,
        tail=tuple(read_tail(conn, on_branch, table.table_id)) if tails else (),
        reserved_from=reserved,
    )
    return replace(branch_table, folded=_folded(conn, branch_table)) if table.key else branch_table


def _folded(conn: Connection, branch_table: BranchTable) -> BranchTable:
    """The state of a keyed table: its columns are those of the table."""
    table = branch_table.table.state
    head = read_head(conn, branch_table.head.branch_id, table.table_id)
    head = replace(head, schema_version=branch_table.head.schema_version)
    return BranchTable(table, head, branch_table.schema, tail=(), reserved_from=None, schemas=branch_table.schemas)


def read_head(conn: Connection, on_branch: str, table_id: str) -> Head:
    """One head."""
    row = conn.execute(select(db.heads).where(db.heads.c.branch_id == on_branch, db.heads.c.table_id == table_id)).one()
    return Head(
        branch_id=row.branch_id,
        table_id=row.table_id,
        version=row.version,
        log_snapshot=row.log_snapshot,
        last_seq=row.last_seq,
        schema_version=row.schema_version,
        refuses=row.refuses,
        books=Books(row.rows_acked, row.rows_log, row.rows_dropped, row.rows_pruned, row.rows_quarantined),
        barrier=row.barrier,
        kept_from=row.kept_from,
    )


def has_schema(conn: Connection, head: Head) -> bool:
    """Whether a table is still written under the schema of a head that was read earlier."""
    now = db.heads.c
    same_table = (now.branch_id == head.branch_id, now.table_id == head.table_id)
    return conn.execute(select(now.schema_version).where(*same_table)).scalar() == head.schema_version


def read_schema(conn: Connection, table_id: str, version: int) -> Schema:
    """One version of a table's schema."""
    return read_schemas(conn, table_id)[version]


def read_schemas(conn: Connection, table_id: str) -> dict[int, Schema]:
    """Every version of a table's schema, of all branches: its files and batches name them."""
    query = select(db.schemas.c.version, db.schemas.c.definition).where(db.schemas.c.table_id == table_id)
    return {row.version: _schema(row.definition) for row in conn.execute(query)}


@lru_cache(maxsize=1024)
def _schema(definition: str) -> Schema:
    """Parsed once: a version never changes, and every view asks for it."""
    return from_json(orjson.loads(definition))


def read_tail(conn: Connection, on_branch: str, table_id: str) -> list[BatchRef]:
    """The batches of a tail in seq order, without their payloads."""
    rows = conn.execute(
        select(*REF_COLUMNS)
        .join_from(db.tail, db.batches, db.tail.c.batch_id == db.batches.c.batch_id)
        .where(db.tail.c.branch_id == on_branch, db.tail.c.table_id == table_id)
        .order_by(db.tail.c.first_seq)
    )
    return [BatchRef(*row) for row in rows.all()]  # one by one, the driver takes much longer


def tail_sizes(conn: Connection, on_branch: str) -> list[tuple[str, int, int, int | None]]:
    """Every table with the rows, the bytes and the oldest time (in µs) of its tail, without listing its batches."""
    size = db.batches.c
    rows = conn.execute(
        select(db.tables.c.name, func.sum(size.rows), func.sum(size.size_bytes), func.min(size.at_us))
        .select_from(
            db.tables.outerjoin(
                db.tail, and_(db.tail.c.table_id == db.tables.c.table_id, db.tail.c.branch_id == on_branch)
            ).outerjoin(db.batches, db.batches.c.batch_id == db.tail.c.batch_id)
        )
        .where(_OWN)
        .group_by(db.tables.c.name)
        .order_by(db.tables.c.name)
    )
    return [(name, int(count or 0), int(size_bytes or 0), at_us) for name, count, size_bytes, at_us in rows]


class WaitingTail(NamedTuple):
    """The tail of a branch's table: its bytes, its oldest time (in µs), its rows and batches."""

    branch: str
    table: str
    kind: Kind
    size_bytes: int
    since_us: int
    rows: int
    batches: int


def waiting_tails(conn: Connection) -> list[WaitingTail]:
    """Every tail that is not empty."""
    size, branch, table = db.batches.c, db.branches.c, db.tables.c
    rows = conn.execute(
        select(
            branch.name,
            table.name,
            table.kind,
            func.sum(size.size_bytes),
            func.min(size.at_us),
            func.sum(size.rows),
            func.count(),
        )
        .select_from(
            db.tail.join(db.batches, size.batch_id == db.tail.c.batch_id)
            .join(db.tables, table.table_id == db.tail.c.table_id)
            .join(db.branches, branch.branch_id == db.tail.c.branch_id)
        )
        .where(branch.deleted_at_us.is_(None), branch.kind == "branch")
        .group_by(branch.name, table.name, table.kind)
        .order_by(table.name, branch.name)
    )
    return [WaitingTail(*row) for row in rows]


def read_books(conn: Connection, on_branch: str) -> list[tuple[str, Books]]:
    """Every table with its books."""
    head = db.heads.c
    rows = conn.execute(
        select(
            db.tables.c.name,
            head.rows_acked,
            head.rows_log,
            head.rows_dropped,
            head.rows_pruned,
            head.rows_quarantined,
        )
        .join_from(db.tables, db.heads, head.table_id == db.tables.c.table_id)
        .where(head.branch_id == on_branch, _OWN)
        .order_by(db.tables.c.name)
    )
    return [(name, Books(*counts)) for name, *counts in rows]


class Refusing(NamedTuple):
    """A branch's table that refuses writes, and why."""

    branch: str
    table: str
    reason: str


def refusing(conn: Connection) -> list[Refusing]:
    """Every table that refuses writes until a person has looked, on every branch."""
    head, branch = db.heads.c, db.branches.c
    rows = conn.execute(
        select(branch.name, db.tables.c.name, head.refuses)
        .join_from(db.heads, db.branches, branch.branch_id == head.branch_id)
        .join(db.tables, db.tables.c.table_id == head.table_id)
        .where(head.refuses.is_not(None), branch.deleted_at_us.is_(None), branch.kind == "branch")
        .order_by(branch.name, db.tables.c.name)
    )
    return [Refusing(*row) for row in rows]


def refuse_writes(txn: Txn, on_branch: str, table_id: str, reason: str | None) -> None:
    """Make a (branch, table) refuse writes until a person has looked; None lets it take them again."""
    txn.conn.execute(
        update(db.heads)
        .where(db.heads.c.branch_id == on_branch, db.heads.c.table_id == table_id)
        .values(refuses=reason)
    )


def _table(row: Row[Any]) -> Table:
    values = row._mapping
    return Table(
        table_id=values["table_id"],
        name=values["name"],
        kind=values["kind"],
        iceberg_name=values["iceberg_name"],
        row_key=tuple(orjson.loads(values["row_key"])),
        key=tuple(orjson.loads(values["key"])),
        partition_by=tuple(orjson.loads(values["partition_by"])),
        dedupe=values["dedupe"],
        extra=bool(values["extra"]),
        created_at_us=values["created_at_us"],
        inbound=bool(values["inbound"]),
        settings=TableSettings(**orjson.loads(values["settings"])),
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def check_name(name: str) -> None:
    """Table names are plain words, so that they need no quoting in any engine."""
    if not (name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha() and len(name) <= 120):
        raise BadRequest(
            f"{name!r} can't be a table's name",
            hint="Use a letter from a to z, then these, digits and underscores, at most 120.",
        )


def branch_name(conn: Connection, on_branch: str) -> str:
    """The name of a branch."""
    return str(conn.execute(select(db.branches.c.name).where(db.branches.c.branch_id == on_branch)).scalar_one())
