"""What may be shown, and how the rest is kept from being shown.

Settings, addresses and errors end up in many places: in the ledger and its backups, in `status`, `doctor` and their
JSON, in logs, traces and a sink's last error. A list of words that sound secret always lacks one, so it goes the other
way round: a short list says what is known to be harmless, and everything else is shown as `***`.

Three things hold it. An address shows its user (of a database alone), its host and path, and those of its options that
are on the list. A setting is stored and shown if it is on the list, and else put away. And the values of secrets that
this process has read are remembered, so that an error in which a destination repeats one does not show it either.

The path of a web address is shown, but for a part of it that looks like a token, as webhooks have them: it may as well
be the id of an account, so such an address is taken and stored, and that part alone is not shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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

_PUBLIC_SPARK = re.compile(
    r"spark\.(master|app\.name|submit\.deployMode|ui\.\w+|local\.dir|jars|jars\.packages|default\.parallelism|cores\.max|"
    r"(driver|executor)\.(memory|memoryOverhead|cores|instances|bindAddress|host|port|maxResultSize|extraClassPath)|"
    r"executor\.instances|task\.\w+|memory\.[\w.]+|shuffle\.[\w.]+|"
    r"dynamicAllocation\.[\w.]+|python\.[\w.]+|pyspark\.[\w.]+|network\.timeout|rpc\.message\.maxSize|locality\.[\w.]+|"
    r"sql\.(adaptive|shuffle|files|session|codegen|execution|parquet|autoBroadcastJoinThreshold|extensions|ansi|iceberg)"
    r"[\w.]*|serializer|speculation[\w.]*|kubernetes\.(namespace|container\.image|executor\.request\.cores)|"
    r"hadoop\.fs\.(permissions\.umask-mode|file\.impl|s3\.impl|s3a\.(endpoint|endpoint\.region|path\.style\.access)))"
)

_secrets: set[str] = set()


def remember(value: str | None) -> str | None:
    """Keep a secret's value from being shown by this process, in whatever form it turns up; gives it back."""
    if value is not None and len(value) >= SHORTEST:
        # As a repr and JSON have it, alone or within a longer text.
        escaped = {repr(value)[1:-1], repr(value + "'" + '"')[1:-4], json.dumps(value)[1:-1]}
        _secrets.update({value, quote(value, safe=""), quote(value), *escaped})
    return value


def remember_within(value: object) -> None:
    """The same for a secret of any form: all of its texts, one by one and as a list of them is written."""
    match value:
        case None | bool():
            return
        case Mapping():
            for part in (*value, *value.values()):
                remember_within(part)
        case list() | tuple() | set() | frozenset():
            for part in value:
                remember_within(part)
            remember(",".join(map(str, value)))
    remember(str(value))


def is_public_spark(key: str) -> bool:
    """Whether a setting of Spark holds no secret."""
    return _PUBLIC_SPARK.fullmatch(key) is not None


# -- addresses ---------------------------------------------------------------------------------------------------------

_USER = re.compile(r"(?<=://)[^/\s\"'<>?#]*@")
_OPTION = re.compile(r"(?<=[?&;])([^=&;#\s\"'<>]+)=([^&;#\s\"'<>]*)")
_FRAGMENT = re.compile(r"#[^\s\"'<>]+")
_ADDRESS = re.compile(r"(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]*:/{1,4}[^\s\"'<>`]*|jdbc:[^\s\"'<>`]+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_DATABASES = ("postgres", "jdbc:", "mysql")
_WEB = ("http", "https")
_PATH = re.compile(r"(?<=[^/:])/[^?#]*")
_WORD = re.compile(r"[A-Za-z0-9_%~+=:-]{24,}")
_ID = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{24}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?![0-9A-Za-z])"
)
"""What looks like a token and is none: our own ids, and UUIDs."""
_BETWEEN = re.compile(r"(?<=[0-9])(?=[A-Za-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[a-z])")


def shown_address(address: str) -> str:
    """An address without what may be secret in it."""
    scheme = address.partition("://")[0].lower()
    shown = _without_secrets(address)
    if scheme not in _WEB:
        return shown
    return _PATH.sub(lambda path: "/".join(map(_shown_part, path[0].split("/"))), shown, count=1)


def _without_secrets(address: str) -> str:
    """An address without the user, options and fragment that may be secret."""
    scheme = address.partition("://")[0].lower()
    is_database = scheme.startswith(_DATABASES)

    def user(match: re.Match[str]) -> str:
        name, colon, _ = match[0].removesuffix("@").partition(":")
        return f"{name}:{MASK}@" if is_database and colon else match[0] if is_database else f"{MASK}@"

    def option(match: re.Match[str]) -> str:
        return match[0] if unquote(match[1]).lower() in PUBLIC_OPTIONS else f"{match[1]}={MASK}"

    shown = _OPTION.sub(option, _USER.sub(user, address))
    return shown if is_database or scheme == "file" else _FRAGMENT.sub(f"#{MASK}", shown)


def _shown_part(part: str) -> str:
    """A part of a path, or a mask where it looks like a token: long, and its kinds of letters change all the time."""
    for word in _WORD.findall(unquote(part)):
        rest = _ID.sub("", word)
        if len(rest) >= 20 and len(_BETWEEN.findall(rest)) >= len(rest) / 4:
            return MASK
    return part


def secret_of(address: str) -> str | None:
    """What of an address may be secret and has a better place, in words; None when there is nothing."""
    scheme = address.partition("://")[0].lower()
    user = _USER.search(address)
    if user is not None and (not scheme.startswith(_DATABASES) or ":" in user[0]):
        return "a password or token before the @"
    options = [unquote(name) for name, _ in _OPTION.findall(address) if unquote(name).lower() not in PUBLIC_OPTIONS]
    if options:
        return f"the option {options[0]!r}"
    return "what follows the #" if _without_secrets(address) != address else None


def secret_values(address: str) -> list[str]:
    """The values of an address's options that may be secret."""
    return [value for name, value in _OPTION.findall(address) if unquote(name).lower() not in PUBLIC_OPTIONS]


# -- texts -------------------------------------------------------------------------------------------------------------


def redacted(text: str, shown: Callable[[str], str] = shown_address) -> str:
    """A text with every address in it as it may be shown, and without the secrets that this process has read."""
    if ":/" in text or "jdbc:" in text:
        text = _ADDRESS.sub(lambda match: shown(match[0]), text)
    if "earer" in text or "asic" in text or "EARER" in text:
        text = _BEARER.sub(rf"\1 {MASK}", text)
    for value in sorted(_secrets, key=len, reverse=True):
        text = text.replace(value, MASK) if value in text else text
    return text


def has_secret(text: str) -> bool:
    """Whether a text has something in it that is stored nowhere in clear."""
    return redacted(text, _without_secrets) != text


def redacted_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """The same for the texts among some values."""
    return {key: redacted(value) if isinstance(value, str) else value for key, value in fields.items()}
