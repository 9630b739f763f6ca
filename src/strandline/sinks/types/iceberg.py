"""iceberg: rows are appended to tables of another Iceberg catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline.errors import BadRequest
from strandline.redaction import secret_of
from strandline.settings_text import Key
from strandline.sinks.keys import one_of, plain_text
from strandline.sinks.kind import OpenKeys, Sender, SinkType

if TYPE_CHECKING:
    from strandline.sinks.iceberg import IcebergCopy

COPIES = "_copies"
"""Where rows on their way to another catalog lie, in the warehouse, which Spark's workers can reach."""

PUBLIC_CATALOG = frozenset(
    {
        "type", "catalog-impl", "io-impl", "uri", "warehouse", "prefix", "scope", "cache-enabled", "clients",
        "cache.expiration-interval-ms", "jdbc.schema-version", "jdbc.user", "client.region", "client.factory",
        "s3.endpoint", "s3.region", "s3.path-style-access", "rest.sigv4-enabled", "rest.signing-name",
        "rest.signing-region", "rest.auth.type", "oauth2-server-uri", "token-refresh-enabled", "glue.id",
        "glue.skip-archive", "header.x-iceberg-access-delegation", "view-endpoints-supported", "metrics-reporter-impl",
    }
)  # fmt: skip
"""Properties of an Iceberg catalog that hold no secret."""


def is_public_catalog(key: str, value: object) -> bool:
    """Whether a property of an Iceberg catalog holds no secret."""
    return key.lower() in PUBLIC_CATALOG and secret_of(str(value)) is None


def _check(settings: Mapping[str, Any], where: str) -> None:
    if settings.get("catalog", "jdbc") == "jdbc" and "warehouse" not in settings:
        # A REST catalog says itself where its tables are.
        raise BadRequest(f"{where}: a JDBC catalog needs 'warehouse'", hint="Add --set warehouse=…")


def _make(sender: Sender) -> IcebergCopy:
    from strandline.sinks.iceberg import IcebergCopy

    return IcebergCopy(
        sender.settings,
        lake_id=sender.lake_id,
        sink_id=sender.sink.sink_id,
        spark=sender.spark,
        staging=f"{sender.warehouse}/{COPIES}",
        start_seq=sender.sink.start_seq,
        take_over=sender.take_over,
        name=sender.sink.name,
        delivered=sender.has_delivered,
        name_of=sender.name_of,
        generation=sender.generation,
    )


TYPE = SinkType(
    name="iceberg",
    keys={
        "catalog": Key("jdbc", one_of("jdbc", "rest"), "the kind of catalog; `catalog.KEY` is any property of it"),
        "uri": Key(None, plain_text, "the catalog's address; for JDBC it begins with `jdbc:`", is_address=True),
        "warehouse": Key(
            None, plain_text, "where its tables are; a REST catalog may know that itself", is_address=True
        ),
        "namespace": Key("lake", plain_text, "where our tables go; made if it is not there"),
    },
    make=_make,
    required=("uri",),
    place=("uri", "warehouse", "namespace"),
    check=_check,
    open_keys=OpenKeys("catalog.", is_public_catalog),
    where_secrets_go="Addresses are shown and logged. Use a property of the catalog, such as catalog.jdbc.password or "
    "catalog.header.Authorization: those that may be secret are put away.",
    when_shared="a table there belongs to the sink that writes it first, and the other one's deliveries park",
    looks_with_spark=True,
)
