"""Whether other users of the machine could read the lake, or a secret of it: an older version may have let them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from strandline import private
from strandline.config import FILE_NAME
from strandline.engines.duck.relations import local_path
from strandline.ledger.sinks.sinks import list_sinks
from strandline.redaction import secret_of
from strandline.reports.findings import Examination, Finding
from strandline.sinks.instances import SECRETS
from strandline.sinks.settings import in_clear


def readable(look: Examination) -> Iterator[Finding]:
    """What every user of this machine can read or write of the lake: its databases, config, secrets and warehouse."""
    config = look.lake.config
    places = [config.ledger_path, config.catalog_path, config.root / FILE_NAME, config.root / SECRETS]
    if config.warehouse.startswith("file:"):
        places.append(Path(local_path(config.warehouse)))
    is_closed = not private.others_may_enter(config.root)
    for path in places:
        if path is None or not path.exists() or (is_closed and config.root in path.parents):
            continue
        may = private.others_may(path)
        if may:
            yield Finding(
                kind="readable_by_all",
                about=str(path),
                what=f"every user of this machine may {may} {path}",
                meaning="Its rows, or its secrets, are for everybody. What is made from now on is its owner's alone.",
                fix=f"chmod -R o-rwx {shlex.quote(str(path))}",
                severity="warning",
            )


def in_the_clear(look: Examination) -> Iterator[Finding]:
    """Secrets that an older version stored in the ledger, or that an address in the config has in it."""
    with look.lake.ledger.read() as conn:
        sinks = list_sinks(conn)
    for sink in sinks:
        names = in_clear(sink.type, sink.settings)
        if names:
            yield Finding(
                kind="secret_in_clear",
                about=sink.name,
                what=f"sink {sink.name}: what may be secret is in the ledger in clear: {', '.join(names)}",
                meaning="It is not shown, and left out of new backups; older copies of the ledger have it.",
                fix=f"`strand sink set {sink.name} --set {names[0]}=…`   (with a new secret: it is put away then; an "
                "address is written without it)",
                severity="warning",
            )
    config = look.lake.config
    addresses = {"[lake] warehouse": config.warehouse, "[s3] endpoint": config.store.endpoint or ""}
    if config.ledger_path is None:
        addresses["[lake] ledger"] = config.ledger_written
    for setting, address in addresses.items():
        secret = None if address.startswith("file:") else secret_of(address)
        if secret is not None:
            yield Finding(
                kind="secret_in_clear",
                about=setting,
                what=f"{setting} has {secret} in it, which may be secret",
                meaning="It works, and is not shown; but whoever reads the config or the environment has it.",
                fix="write the address without it: the password of a ledger goes into secrets/ledger.password, or "
                "PGPASSWORD; credentials of a store into AWS_SECRET_ACCESS_KEY or ~/.aws/credentials",
                severity="warning",
            )
