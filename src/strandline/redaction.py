"""What may be shown, and how the rest is kept from being shown.

Settings, addresses and errors end up in many places: in the ledger and its backups, in `status`, `doctor` and their
JSON, in logs, traces and a sink's last error. A list of words that sound secret always lacks one, so it goes the other
way round: a short list says what is known to be harmless, and everything else is shown as `***`.

Three things hold it. An address shows its user (of a database alone), its host and path, and those of its options that
are on the list. A setting is stored and shown if it is on the list, and else put away. And the values of secrets that
this process has read are remembered, so that an error in which a destination repeats one does not show it either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

MASK = "***"
SHORTEST = 6
"""A shorter value is not looked for in texts: it would be found in words."""

PUBLIC_OPTIONS = frozenset(
    {
        "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation", "connect_timeout", "channel_binding",
        "application_name", "target_session_attrs", "gssencmode", "keepalives", "keepalives_idle",
        "keepalives_interval", "keepalives_count", "tcp_user_timeout", "client_encoding", "load_balance_hosts",
        "hostaddr", "host", "port",
        "dbname", "user", "tcpkeepalive", "currentschema", "ssl", "journal_mode", "busy_timeout", "mode", "region",
        "sink", "stream", "limit", "branch",
    }
)  # fmt: skip
"""Options of an address that hold no secret."""

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

_PUBLIC_SPARK = re.compile(
    r"spark\.(master|app\.name|submit\.deployMode|ui\.\w+|local\.dir|jars|jars\.packages|default\.parallelism|cores\.max|"
    r"(driver|executor)\.(memory|memoryOverhead|cores|instances|bindAddress|host|port|maxResultSize|extraClassPath)|"
    r"executor\.instances|task\.\w+|memory\.[\w.]+|shuffle\.[\w.]+|"
    r"dynamicAllocation\.[\w.]+|python\.[\w.]+|pyspark\.[\w.]+|network\.timeout|rpc\.message\.maxSize|locality\.[\w.]+|"
    r"sql\.(adaptive|shuffle|files|session|codegen|execution|parquet|autoBroadcastJoinThreshold|extensions|ansi|iceberg)"
    r"[\w.]*|serializer|speculation[\w.]*|kubernetes\.(namespace|container\.image|executor\.request\.cores)|"
    r"hadoop\.fs\.(permissions\.umask-mode|file\.impl|s3\.impl|s3a\.(endpoint|endpoint\.region|path\.style\.access)))"
)

_known: set[str] = set()


def remember(value: str | None) -> str | None:
    """Keep a secret's value from being shown by this process, in whatever form it turns up; gives it back."""
    if value is not None and len(value) >= SHORTEST:
        _known.update({value, quote(value, safe=""), quote(value)})
    return value


def is_public_spark(key: str) -> bool:
    """Whether a setting of Spark holds no secret."""
    return _PUBLIC_SPARK.fullmatch(key) is not None


def is_public_catalog(key: str, value: object) -> bool:
    """Whether a property of an Iceberg catalog holds no secret."""
    return key.lower() in PUBLIC_CATALOG and secret_of(str(value)) is None


# -- addresses ---------------------------------------------------------------------------------------------------------

_USER = re.compile(r"(?<=://)[^/\s\"'<>?#]*@")
_OPTION = re.compile(r"(?<=[?&;])([^=&;#\s\"'<>]+)=([^&;#\s\"'<>]*)")
_FRAGMENT = re.compile(r"#[^\s\"'<>]+")
_ADDRESS = re.compile(r"(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]*:/{1,4}[^\s\"'<>`]*|jdbc:[^\s\"'<>`]+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_DATABASES = ("postgres", "jdbc:", "mysql")


def shown_address(address: str) -> str:
    """An address without what may be secret in it."""
    scheme = address.partition("://")[0].lower()
    is_database = scheme.startswith(_DATABASES)

    def user(found: re.Match[str]) -> str:
        name, colon, _ = found[0].removesuffix("@").partition(":")
        return f"{name}:{MASK}@" if is_database and colon else found[0] if is_database else f"{MASK}@"

    def option(found: re.Match[str]) -> str:
        return found[0] if unquote(found[1]).lower() in PUBLIC_OPTIONS else f"{found[1]}={MASK}"

    shown = _OPTION.sub(option, _USER.sub(user, address))
    return shown if is_database or scheme == "file" else _FRAGMENT.sub(f"#{MASK}", shown)


def secret_of(address: str) -> str | None:
    """What of an address may be secret, in words; None when all of it may be shown."""
    scheme = address.partition("://")[0].lower()
    found = _USER.search(address)
    if found is not None and (not scheme.startswith(_DATABASES) or ":" in found[0]):
        return "a password or token before the @"
    options = [unquote(name) for name, _ in _OPTION.findall(address) if unquote(name).lower() not in PUBLIC_OPTIONS]
    if options:
        return f"the option {options[0]!r}"
    return "what follows the #" if shown_address(address) != address else None


def secret_values(address: str) -> list[str]:
    """The values of an address's options that may be secret."""
    return [value for name, value in _OPTION.findall(address) if unquote(name).lower() not in PUBLIC_OPTIONS]


# -- texts -------------------------------------------------------------------------------------------------------------


def redacted(text: str) -> str:
    """A text with every address in it as it may be shown, and without the secrets that this process has read."""
    if ":/" in text or "jdbc:" in text:
        text = _ADDRESS.sub(lambda found: shown_address(found[0]), text)
    if "earer" in text or "asic" in text or "EARER" in text:
        text = _BEARER.sub(rf"\1 {MASK}", text)
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, MASK) if value in text else text
    return text


def redacted_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the texts among some values."""
    return {key: redacted(value) if isinstance(value, str) else value for key, value in fields.items()}
