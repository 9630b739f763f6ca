"""The rows of one table in a merge: what is written, and what the two sides disagree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck import sandbox, threeway
from strandline.engines.duck.threeway import BEFORE, BLENDED, CHANGED, FIELDS, PRESENT, STAYS, TAKEN, UNDECIDED, VERDICT
from strandline.model.history.merge import Resolution, RowConflict, key_text
from strandline.model.schema.keys import key_hashes
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import REMOVED
from strandline.model.tables import BranchTable
from strandline.model.values import rows as rules
from strandline.model.values.arrow import batch_arrow
from strandline.views.diff import Written, changed_rows, plain_rows
from strandline.views.view import View


@dataclass
class TableMerge:
    """What a merge does to one table: the rows it writes, as the target has them now and as they will be."""

    branch_table: BranchTable
    written: pa.Table
    present: pa.Table
    looked_at: int
    conflicts: list[RowConflict] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)

    def decided(self) -> list[str]:
        """The keys of rows on which the sides disagreed, whether or not a person has decided."""
        return [*(key_text(conflict.key) for conflict in self.conflicts), *self.resolved]


class Sides:
    """One table of both branches, and as it was at the commits where they last were one."""

    def __init__(
        self,
        source: View,
        target: View,
        past: Sequence[View],
        name: str,
        made: Written,
        kept: Written,
    ) -> None:
        self._past = [view for view in past if name in view.tables]
        self._target = target
        self._name = name
        self.branch_table = target.branch_table(name)
        self.key = list(self.branch_table.table.key)
        self.shape = batch_arrow(self.branch_table.schema, self.branch_table.table)
        self.changed = self._since(source, made)
        self.present = self._shaped(target.pick(name, self.changed.select(self.key)))
        self.both, self.past = self._met(self._since(target, kept))

    def _since(self, view: View, written: Written) -> pa.Table:
        """What a side has changed since the base: the rows of its commits as it has them now.

        What it merged is among these commits, and a merge writes nothing of rows that need no change: their keys are
        in the logs of the branches that were merged. Where such a log is gone, all rows are compared with the base's.
        """
        if written is None:
            return self._compared(view)
        others = written[1:]
        every = [commit for _, commits in written for commit in commits]  # it has others' rows of tables it took over
        changed = self._shaped(changed_rows(view, self._name, every))
        keys = [
            changed_rows(other, self._name, commits).select(self.key)
            for other, commits in others
            if self._name in other.tables and any(self._name in commit.tables for commit in commits)
        ]
        if not keys:
            return changed
        logged = pa.concat_tables(keys).group_by(self.key).aggregate([])
        more = threeway.other_keys(logged, changed.select(self.key))
        current = self._shaped(view.pick(self._name, more))
        gone = threeway.other_keys(more, current.select(self.key))
        return pa.concat_tables([changed, current, self._removed(gone)])

    def _compared(self, view: View) -> pa.Table:
        before = self._all(self._past[0]) if self._past else self.shape.empty_table()
        after = self._all(view)
        keys = threeway.differing_keys(before, after, self.key)
        current = threeway.shared_rows(after, keys)
        return pa.concat_tables([current, self._removed(threeway.other_keys(keys, current.select(self.key)))])

    def _removed(self, keys: pa.Table) -> pa.Table:
        """Versions that say of these keys that their rows are gone."""
        columns = {
            column.name: keys[column.name].cast(column.type)
            if column.name in self.key
            else pa.array([True] * keys.num_rows, pa.bool_())
            if column.name == REMOVED
            else pa.nulls(keys.num_rows, column.type)
            for column in self.shape
        }
        return pa.table(columns, schema=self.shape)

    def _all(self, view: View) -> pa.Table:
        return self._shaped(view.pick(self._name, view.having(self._name, self.key, None)))

    def _shaped(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.shape.names).cast(self.shape)

    def _met(self, kept: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The keys that both sides changed, whether their bases disagree, and their rows at the newest base."""
        theirs = self.changed.select(self.key)
        both = threeway.shared_keys(theirs, kept.select(self.key))
        olds = [self._shaped(view.pick(self._name, both)) for view in self._past] if both.num_rows else []
        past = olds[0] if olds else self.changed.slice(0, 0)
        # Bases that differ don't tell what both sides began with: such a row merges only where both made it the same.
        unsure: set[str] = set()
        for other in olds[1:]:
            unsure |= {_row_text(row) for row in threeway.differing_keys(past, other, self.key).to_pylist()}
        flags = [_row_text(row) in unsure for row in both.to_pylist()]
        return both.append_column("unsure", pa.array(flags, pa.bool_())), past

    def merge(self, resolution: Resolution) -> TableMerge:
        """The rows that are written, and those that are in conflict."""
        values = [name for name in self.shape.names if name not in (*self.key, REMOVED)]
        with sandbox.scratch() as connection:
            judged = threeway.merge_rows(
                connection,
                {CHANGED: self.changed, PRESENT: self.present, BEFORE: self.past},
                self.both,
                self._choices(resolution),
                self.key,
                values,
            )
        looked_at = self.changed.num_rows + self.present.num_rows + self.both.num_rows + self.past.num_rows
        table = TableMerge(self.branch_table, self.present.slice(0, 0), self.present, looked_at)
        judged = self._without_kept(table, judged, resolution)
        taken = self._shaped(judged.filter(pc.equal(judged[VERDICT], TAKEN)))
        table.written = pa.concat_tables([table.written, taken])
        open_ = pc.invert(pc.is_in(judged[VERDICT], value_set=pa.array([TAKEN, STAYS])))
        self._decide(table, judged.filter(open_), resolution)
        # Also of rows that are not written: that was judged by what the target has under these keys.
        table.hashes = key_hashes(self.changed.select(self.key))
        return table

    def _without_kept(self, table: TableMerge, judged: pa.Table, resolution: Resolution) -> pa.Table:
        """Without rows that would merge and that a person has decided to leave as the target has them.

        These are written all the same, as they are: the decision is this commit's, and a reader of what it changed
        (a merge the other way, a diff) must find them.
        """
        if not resolution.rows:
            return judged
        left: list[bool] = []
        for key, verdict in zip(
            plain_rows(judged.select(self.key), self.branch_table), judged[UNDECIDED].to_pylist(), strict=True
        ):
            text = key_text(key)
            decision = resolution.rows.get((self.branch_table.table.name, text))
            merges = verdict in (TAKEN, BLENDED)
            left.append(decision == "ours" and merges)
            table.resolved += [text] if decision is not None and (not merges or decision == "ours") else []
        keys = judged.select(self.key).filter(pa.array(left, pa.bool_()))
        current = threeway.shared_rows(self.present, keys)
        table.written = pa.concat_tables([current, self._removed(threeway.other_keys(keys, current.select(self.key)))])
        return judged.filter(pc.invert(pa.array(left, pa.bool_())))

    def _choices(self, resolution: Resolution) -> pa.Table:
        """Whose side decides, by key."""
        keys = self.changed.select(self.key)
        side = resolution.side_of(self.branch_table.table.name)
        sides: list[str | None] = [side] * keys.num_rows
        if resolution.rows:
            for place, key in enumerate(plain_rows(keys, self.branch_table)):
                decision = resolution.rows.get((self.branch_table.table.name, key_text(key)))
                if decision is not None:
                    sides[place] = decision if isinstance(decision, str) else None
        return keys.append_column("side", pa.array(sides, pa.string()))

    def _decide(self, table: TableMerge, rows: pa.Table, resolution: Resolution) -> None:
        """List what is in conflict; what a person wrote instead is taken."""
        if not rows.num_rows:
            return
        names = [name for name in self.shape.names if name != REMOVED]
        images = self.past, self.present, self.changed.filter(pc.invert(self.changed[REMOVED]))
        past, ours, theirs = (
            {
                key_text({name: row[name] for name in self.key}): row
                for row in plain_rows(image.select(names), self.branch_table)
            }
            for image in images
        )
        met = {key_text(row) for row in plain_rows(self.both.select(self.key), self.branch_table)}
        for key, kind, fields in zip(
            plain_rows(rows.select(self.key), self.branch_table),
            rows[VERDICT].to_pylist(),
            rows[FIELDS].to_pylist(),
            strict=True,
        ):
            text = key_text(key)
            decision = resolution.rows.get((self.branch_table.table.name, text))
            if isinstance(decision, Mapping):
                table.written = pa.concat_tables([table.written, self._as_written(key, decision["row"])])
                continue
            # A row that the target has left alone is still what both began with.
            before = past.get(text) if text in met else ours.get(text)
            table.conflicts.append(
                RowConflict(
                    kind, self.branch_table.table.name, key, tuple(fields), before, ours.get(text), theirs.get(text)
                )
            )

    def _as_written(self, key: Mapping[str, Any], row: Mapping[str, Any] | None) -> pa.Table:
        """A row that a person decided on, validated like any other."""
        if row is None:
            named = Schema(tuple(self.branch_table.schema.column(name) for name in self.key))
            validated = rules.from_dicts([key], named)
        else:
            validated = rules.from_dicts(
                [{**row, **key}], self.branch_table.schema, extra=self.branch_table.table.extra
            )
        arrays = [
            pa.array([row is None])
            if column.name == REMOVED
            else (validated.column(column.name) if column.name in validated.schema.names else pa.nulls(1, column.type))
            for column in self.shape
        ]
        return pa.Table.from_arrays(arrays, schema=self.shape)


def _row_text(row: Mapping[str, Any]) -> str:
    return repr(list(row.values()))
