"""Parquet files that lie, by the ways in which files come: refused in our words, and the process goes on."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.engines.files import find_inputs, shape_of
from strandline.errors import BadRequest

FILES = 150

READER = """
import sys
from strandline.engines.files import RowShape, FilePart, Skipped, count_rows, find_inputs, read_chunk, shape_of
from strandline.errors import StrandError
from strandline.model.schema.schema import parse_columns

shape = RowShape(parse_columns("s:string?,n:long?,l:list<long>?"))

def read(file):
    for _ in read_chunk(FilePart(file), shape, table="t", skipped=Skipped()):
        pass

for file in find_inputs([sys.argv[1]]):
    for look in (shape_of, count_rows, read):
        try:
            look(file)
        except StrandError as error:
            print(error.code)
        else:
            print("read")
"""


def parquet(**options: object) -> bytes:
    """A small file of every kind of page."""
    rows = range(40)
    table = pa.table(
        {
            "s": [None if n % 7 == 0 else f"text {n % 5}" for n in rows],
            "n": pa.array(rows, pa.int64()),
            "l": pa.array([None if n % 5 == 0 else list(range(n % 4)) for n in rows], pa.list_(pa.int64())),
        }
    )
    written = pa.BufferOutputStream()
    pq.write_table(table, written, **options)
    return written.getvalue().to_pybytes()


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The same file with a few bytes of its pages, its footer or its end changed, cut or added."""
    changed = bytearray(content)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for _ in range(chance.choice([1, 1, 2, 4])):
        first, last = chance.choice([(4, footer), (footer, len(content) - 8), (len(content) - 8, len(content))])
        at = chance.randrange(first, last)
        new = chance.choice([b"\xff\xff\xff\x7f", b"\0\0\0\0", bytes([chance.randrange(256)]), b""])
        changed[at : at + max(1, len(new))] = new
    return bytes(changed)


def test_f84_parquet_files_that_lie_end_no_process(tmp_path: Path) -> None:
    """In a process that may die: it reads all of them, or says what is wrong with each, and with no other error."""
    chance = random.Random(1)
    whole = [parquet(compression="none", use_dictionary=False), parquet(), parquet(data_page_version="2.0")]
    for number in range(FILES):
        (tmp_path / f"{number:04}.parquet").write_bytes(mutated(whole[number % len(whole)], chance))
    command = [sys.executable, "-c", READER, tmp_path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split()
    assert len(answers) == 3 * FILES
    assert set(answers) == {"read", "bad_request"}


@pytest.mark.parametrize("broken", [b"PAR1PAR1", b"PAR1" + b"\x19" * 40 + b"\x28\0\0\0PAR1"])
def test_f84_a_broken_footer_is_a_bad_request_when_a_file_is_adopted(tmp_path: Path, broken: bytes) -> None:
    """PyArrow calls it an error of the system."""
    path = tmp_path / "broken.parquet"
    path.write_bytes(broken)
    with pytest.raises(BadRequest, match="can't"):
        shape_of(find_inputs([str(path)])[0])
