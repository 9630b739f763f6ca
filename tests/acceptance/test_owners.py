"""Who is certainly dead: a process of this boot and namespace that is gone, and nobody else of whom one can't know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from strandline.errors import Busy
from strandline.lake import Lake
from strandline.ledger.publish import owner as owners
from strandline.ledger.publish.leases import Lease
from strandline.ledger.publish.owner import Owner, certainly_dead
from strandline.operations.core.beats import holding


@pytest.fixture
def gone() -> Owner:
    """The owner that a process of this host had which has ended."""
    code = "from strandline.ledger.publish.owner import register; print(register().text())"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    owner = Owner.parse(text)
    assert owner is not None
    return owner


def lease_of(owner: Owner) -> Lease:
    return Lease("stream:s:x", fence=1, owner=owner.text(), op_id=None, beat=0, waiting=0)


@pytest.mark.both_ledgers
def test_f82_a_process_of_another_host_of_the_same_name_is_not_certainly_dead(lake: Lake, gone: Owner) -> None:
    """Two machines called `localhost`, both in the first namespace: on Postgres only its silence tells."""
    elsewhere = replace(gone, boot="6f9fbc1e-0000-4000-8000-000000000000")
    assert elsewhere.host == os.uname().nodename and elsewhere.namespace == gone.namespace
    assert lake.context.watch.is_dead(lease_of(elsewhere)) is lake.ledger.has_one_host
    assert lake.context.watch.is_dead(replace(lease_of(gone), name="stream:s:y"))


@pytest.mark.both_ledgers
def test_f82_a_lease_of_such_a_process_is_waited_for(lake: Lake, gone: Owner) -> None:
    """Whoever wants it on Postgres is told to come back, and doctor and status don't call its holder gone."""
    elsewhere = replace(gone, boot="6f9fbc1e-0000-4000-8000-000000000000")
    with Lake(lake.root) as other:
        other._context = replace(other.context, owner=elsewhere)
        hold = holding(other.context, "stream:s:x")
        hold.__enter__()
        if lake.ledger.has_one_host:
            with holding(lake.context, "stream:s:x", wait_s=0.2):
                pass
        else:
            with pytest.raises(Busy), holding(lake.context, "stream:s:x", wait_s=0.2):
                raise AssertionError("a live holder lost its lease")
            hold.__exit__(None, None, None)
    assert lake.reports.status().operations == ()


@pytest.mark.parametrize("one_host", [True, False])
def test_f82_what_proves_death_and_what_does_not(gone: Owner, one_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same boot, the same namespace and no such process do; a name, another namespace or an unknown boot don't."""

    def dead(owner: Owner) -> bool:
        return certainly_dead(owner.text(), one_host=one_host)

    assert dead(gone) and dead(replace(gone, host="renamed"))
    mine = owners.register()
    assert not dead(mine)
    owners.unregister(mine)
    assert dead(mine), "a lake that was closed holds nothing"
    assert dead(replace(gone, pid=os.getpid())), "another process has its number now"
    assert not dead(replace(gone, namespace="pid:[1]"))
    assert dead(replace(gone, boot="another")) is one_host
    assert not dead(replace(gone, boot="another", host="elsewhere"))
    assert not dead(replace(gone, boot=owners.UNKNOWN))
    monkeypatch.setattr(owners, "_boot", lambda: owners.UNKNOWN)
    assert not dead(gone) and not dead(replace(gone, boot=owners.UNKNOWN))


def test_f82_owners_of_older_versions_are_understood(gone: Owner) -> None:
    """The text has had the same fields since the first version; of another kind nothing is known."""
    text = json.dumps(
        {
            "boot": gone.boot,
            "host": gone.host,
            "instance": gone.instance,
            "namespace": gone.namespace,
            "pid": gone.pid,
            "started": gone.started,
        }
    )
    assert Owner.parse(text) == gone and certainly_dead(text, one_host=False)
    for unknown in ("", "{}", "[]", '{"host": "a"}', "null"):
        assert Owner.parse(unknown) is None and not certainly_dead(unknown, one_host=True)


def test_f82_files_of_one_host_are_not_looked_for_on_another_of_its_name(gone: Owner) -> None:
    """A load of a local file is done by a worker of that machine: a name alone would find a worker elsewhere."""
    assert gone.place != replace(gone, boot="another").place
    assert gone.place == replace(gone, pid=1, instance="other").place
