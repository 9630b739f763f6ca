"""A lake's settings: `strand.toml`, with the environment on top.

A setting that is misspelt and silently ignored costs an afternoon, so everything here is strict: an unknown section or
key names its nearest neighbour, a wrong value says what was expected and where it was written, and nothing is guessed.
What comes out is absolute (paths, URIs) and in plain units (bytes, seconds), so that no room below parses again.

Every key can be set by `STRAND_<SECTION>_<KEY>`; an empty variable counts as absent, as container set-ups often pass
those. `STRAND_SPARK_CONF` is a JSON object and is merged over `[spark] conf`. What each key means is said in
`config_keys`; the classes here hold the values of a section.
"""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from strandline import private
from strandline.config_keys import (
    DEFAULT_LEDGER,
    DEFAULT_WAREHOUSE,
    OTHER_VARIABLES,
    SECTIONS,
    VARIABLES,
    read_address,
)
from strandline.config_text import default_file
from strandline.errors import BadRequest, Environment, NotFound, nearest
from strandline.redaction import redacted, remember, secret_of, secret_values, shown_address
from strandline.settings_text import Key

FILE_NAME = "strand.toml"
INIT_HINT = "`strand init DIR` makes one; `--lake DIR` or $STRAND_LAKE says where one is."

_SQLITE = "sqlite:///"
_POSTGRES_SCHEMES = ("postgresql", "postgresql+psycopg")
_JDBC_SETTINGS = ("sslmode", "sslrootcert", "sslcert", "sslkey")

PASSWORD_FILE = "secrets/ledger.password"
"""Where `strand init` puts the password of a ledger's URL, for its owner's eyes alone."""


@dataclass(frozen=True)
class SparkConfig:
    """[spark]."""

    master: str
    conf: Mapping[str, str]


@dataclass(frozen=True)
class FlushConfig:
    """[flush]."""

    max_bytes: int
    max_age_s: float
    keyed_max_age_s: float


@dataclass(frozen=True)
class LeaseConfig:
    """[lease]."""

    ttl_s: float
    wait_s: float


@dataclass(frozen=True)
class MaintenanceConfig:
    """[maintenance]; `every_s` is None for never."""

    every_s: float | None
    grace_s: float
    fold_bytes: int
    fold_percent: int


@dataclass(frozen=True)
class ServerConfig:
    """[server]."""

    listen: str
    metrics: str
    max_body: int
    read_timeout_s: float
    max_connections: int
    max_requests: int
    max_bytes: int
    queue: int
    threads: int


@dataclass(frozen=True)
class QueryConfig:
    """[query]: the limits of one query of a user."""

    time_s: float = 60.0
    memory_bytes: int = 2 * 1024**3
    spill_bytes: int = 10 * 1024**3
    rows: int = 10_000_000


@dataclass(frozen=True)
class AdmissionConfig:
    """[admission]."""

    process_bytes: int


@dataclass(frozen=True)
class WorkerConfig:
    """[worker]; `metrics` is None for nowhere."""

    metrics: str | None
    attempts: int


@dataclass(frozen=True)
class Store:
    """Where an object store answers; what is None is found in the environment, as the AWS tools do.

    Credentials are not part of it: every process finds its own. `path_style` says whether a bucket is a part of the
    path of a request; None: where an endpoint is named, since few other stores have a host's name for each bucket.
    """

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None


@dataclass(frozen=True)
class LakeConfig:
    """One lake's settings, all paths absolute; `ledger` may hold a password, so print `ledger_shown` instead."""

    root: Path
    ledger: str = field(repr=False)
    ledger_written: str = field(repr=False)
    """The ledger's URL as it was written, without the password that was put away."""
    warehouse: str
    spark: SparkConfig
    flush: FlushConfig
    lease: LeaseConfig
    maintenance: MaintenanceConfig
    server: ServerConfig
    query: QueryConfig
    admission: AdmissionConfig
    worker: WorkerConfig
    store: Store
    sinks: Mapping[str, Mapping[str, object]]

    @property
    def ledger_path(self) -> Path | None:
        """The ledger's file, when it is a SQLite one."""
        return Path(self.ledger.removeprefix(_SQLITE)) if self.ledger.startswith(_SQLITE) else None

    @property
    def ledger_shown(self) -> str:
        """The ledger's URL without its password, for people and logs."""
        return self.ledger if self.ledger_path is not None else shown_address(self.ledger)

    @property
    def catalog_path(self) -> Path | None:
        """The catalog's file beside a SQLite ledger; another ledger in the same folder has another one."""
        path = self.ledger_path
        if path is None:
            return None
        return path.with_name("catalog.db" if path.name == "ledger.db" else f"{path.stem}.catalog.db")

    @property
    def catalog_database(self) -> str:
        """The Iceberg catalog as `ledger` names a database: the path as it is; on Postgres it may hold a password."""
        return self.ledger if self.catalog_path is None else f"{_SQLITE}{self.catalog_path}"

    @property
    def catalog_uri(self) -> str:
        """The JDBC address of the Iceberg catalog, without credentials.

        Beside a SQLite ledger it is a file of its own, so that a Spark commit never waits for an append. Without the
        timeout a lock that is held for three seconds fails a Spark job.
        """
        path = self.ledger_path
        if path is not None:
            file = str(self.catalog_path)
            # The driver takes what follows a question mark for options, unless it is encoded in a `file:` address.
            address = f"file:{quote(file)}" if "?" in file else file
            return f"jdbc:sqlite:{address}?journal_mode=WAL&busy_timeout=30000"
        parts = urlsplit(self.ledger)
        address = f"jdbc:postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        # The two drivers share only some names of settings, and the Java one takes an unknown one without a word.
        shared = [(key, value) for key, value in parse_qsl(parts.query) if key in _JDBC_SETTINGS]
        shared += [("targetServerType", "primary")] if "," in parts.netloc else []  # of several hosts
        return f"{address}?{urlencode([*shared, ('tcpKeepAlive', 'true')])}"


def read_listen(text: str) -> str:
    """An address that a command line names."""
    try:
        return read_address(text)
    except ValueError as error:
        raise BadRequest(f"can't listen on {text!r}", hint=f"Name {error}.") from None


def find_root(start: Path | None = None) -> Path:
    """The lake's folder: the one given, else $STRAND_LAKE, else the nearest one upwards, as git finds a repository."""
    if start is not None:
        return _lake_in(start, "")
    named = os.environ.get("STRAND_LAKE")
    if named:
        return _lake_in(Path(named), "$STRAND_LAKE names ")
    current = Path.cwd()
    for folder in (current, *current.parents):
        if (folder / FILE_NAME).is_file():
            return folder
    raise NotFound(f"no lake here: neither {current} nor a folder above it holds a {FILE_NAME}", hint=INIT_HINT)


def _lake_in(folder: Path, prefix: str) -> Path:
    root = folder.expanduser().resolve()
    if (root / FILE_NAME).is_file():
        return root
    what = f"it holds no {FILE_NAME}" if root.is_dir() else "there is no such folder"
    which = f"{prefix}{root}, which" if prefix else str(root)
    raise NotFound(f"{which} is not a lake: {what}", hint=INIT_HINT)


def load(root: Path, env: Mapping[str, str] | None = None) -> LakeConfig:
    """Read the settings of the lake in `root`; `env` stands in for the process's environment."""
    root = root.resolve()
    file = root / FILE_NAME
    document = _read_toml(file)
    _check_names(document, file)
    values = _from_file(document, file)
    for (section, key), value in _from_environment(os.environ if env is None else env).items():
        values[section][key] = {**values[section][key], **value} if isinstance(value, dict) else value
    url = ledger_url(root, values["lake"]["ledger"])
    return LakeConfig(
        root=root,
        ledger=_with_password(root, url),
        ledger_written=url,
        warehouse=warehouse_uri(root, values["lake"]["warehouse"]),
        spark=SparkConfig(**values["spark"]),
        flush=FlushConfig(
            max_bytes=values["flush"]["max_bytes"],
            max_age_s=values["flush"]["max_age"],
            keyed_max_age_s=values["flush"]["keyed_max_age"],
        ),
        lease=LeaseConfig(ttl_s=values["lease"]["ttl"], wait_s=values["lease"]["wait"]),
        maintenance=MaintenanceConfig(
            every_s=values["maintenance"]["every"],
            grace_s=values["maintenance"]["grace"],
            fold_bytes=values["maintenance"]["fold_bytes"],
            fold_percent=values["maintenance"]["fold_percent"],
        ),
        server=_server(values["server"]),
        query=QueryConfig(
            time_s=values["query"]["time"],
            memory_bytes=values["query"]["memory"],
            spill_bytes=values["query"]["spill"],
            rows=values["query"]["rows"],
        ),
        admission=AdmissionConfig(**values["admission"]),
        worker=WorkerConfig(**values["worker"]),
        store=Store(**values["s3"]),
        sinks=_sinks(document.get("sinks", {}), file),
    )


def _server(values: Mapping[str, Any]) -> ServerConfig:
    plain = {key: value for key, value in values.items() if key != "read_timeout"}
    return ServerConfig(**plain, read_timeout_s=values["read_timeout"])


def store_with_environment(store: Store) -> Store:
    """A store with what $STRAND_S3_… says on top, as it will be when the lake is opened."""
    overrides = {key: value for (section, key), value in _from_environment(os.environ).items() if section == "s3"}
    return replace(store, **overrides)


def write_default(
    root: Path, ledger: str = DEFAULT_LEDGER, warehouse: str = DEFAULT_WAREHOUSE, store: Store | None = None
) -> Path:
    """Write a commented `strand.toml`; bad values are refused before that, and a file is never replaced."""
    root = root.resolve()
    ledger_url(root, ledger)
    warehouse_uri(root, warehouse)
    file = root / FILE_NAME
    if file.exists():
        raise BadRequest(f"{root} is a lake already: it holds a {FILE_NAME}", hint="Choose another folder.")
    # A reader must never find half a file, since the file is what makes the folder a lake.
    partial = file.with_name(f".{FILE_NAME}.{os.getpid()}")
    shown = put_password_away(root, ledger)
    private.write_text(partial, default_file(_given_values(shown, warehouse, store or Store())))
    # Readers let a file settle that was just saved, because editors save in pieces. This one is whole: it looks older.
    minute_ago = time.time() - 60
    os.utime(partial, (minute_ago, minute_ago))
    partial.replace(file)
    return file


def without_sinks(text: str, kept: Collection[str]) -> str:
    """A config whose sections of other sinks than these are comments."""
    lines, is_out = [], False
    for line in text.splitlines():
        if re.match(r"\s*\[[^\[\]]+\]\s*(#.*)?$", line):
            ((section, below),) = tomllib.loads(line).items()
            is_out = section == "sinks" and not set(below).issubset(kept)
            lines += (
                ["# Left out of a clone: this sink had not begun. Without the #, it begins here."] if is_out else []
            )
        lines.append(f"# {line}" if is_out and line.strip() else line)
    return "\n".join(lines) + "\n"


def refuse_secret_places(ledger: str | None, warehouse: str | None, store: Store | None = None) -> None:
    """BadRequest when a place that a person names has a secret in it that we have no safe place for.

    The password before the @ of a ledger's URL has one: `put_password_away`.
    """
    parts = urlsplit(ledger or "")
    host = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    if parts.scheme in _POSTGRES_SCHEMES and (secret := secret_of(urlunsplit(host))) is not None:
        raise BadRequest(
            f"the ledger's URL has {secret} in it, which may be secret",
            hint="URLs are shown and logged. Write it before the @ (postgresql://USER:PASSWORD@HOST/DATABASE): it "
            "is put into a file that only its owner can read. PGPASSWORD, PGPASSFILE and PGSERVICEFILE work too.",
        )
    endpoint = store.endpoint if store is not None else None
    is_bucket = warehouse is not None and not warehouse.startswith("file:") and "://" in warehouse
    for name, address in (("warehouse", warehouse if is_bucket else None), ("endpoint", endpoint)):
        if address is not None and (secret := secret_of(address)) is not None:
            raise BadRequest(
                f"the {name}'s address has {secret} in it, which may be secret",
                hint="Addresses are shown and logged. Credentials of a store are found as the AWS tools find them: "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or ~/.aws/credentials.",
            )


def put_password_away(root: Path, url: str) -> str:
    """The URL without its password, which goes into a file that only its owner can read."""
    parts = urlsplit(url)
    if parts.scheme not in _POSTGRES_SCHEMES or parts.password is None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    file = root / PASSWORD_FILE
    private.make_folder(file.parent)
    private.write_text(file, unquote(parts.password))
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}"))


def _with_password(root: Path, url: str) -> str:
    """The URL with the password that was put away. One in the URL or in libpq's own variables goes first."""
    parts = urlsplit(url)
    if parts.scheme in _POSTGRES_SCHEMES:
        for value in (parts.password, *secret_values(url)):
            remember(None if value is None else unquote(value))
    named = any(os.environ.get(variable) for variable in ("PGPASSWORD", "PGPASSFILE"))
    if parts.scheme not in _POSTGRES_SCHEMES or parts.password is not None or not parts.username or named:
        return url
    file = root / PASSWORD_FILE
    try:
        password = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return url
    except OSError as error:
        raise Environment(f"can't read {file}: {error.strerror}", hint="Check the file's owner and mode.") from error
    remember(password)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise NotFound(f"{file.parent} is not a lake: it holds no {FILE_NAME}", hint=INIT_HINT) from error
    except OSError as error:
        raise Environment(f"can't read {file}: {error.strerror}", hint="Check the file's permissions.") from error
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"{file} is not UTF-8: {error.reason} at byte {error.start}", hint="Save it as UTF-8."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{file} is not TOML: {error}", hint="Correct that line; strings need quotes.") from error


def _check_names(document: dict[str, Any], file: Path) -> None:
    for section, table in document.items():
        if section == "sinks":
            continue
        if section not in SECTIONS:
            raise BadRequest(f"{file}: there is no section [{section}]", hint=nearest(section, [*SECTIONS, "sinks"]))
        if not isinstance(table, dict):
            raise BadRequest(f"{file}: {section} must be a section", hint=f"Write [{section}] and its keys below it.")
        for key in table:
            if key not in SECTIONS[section].keys:
                raise BadRequest(
                    f"{file}: there is no key {key!r} in [{section}]", hint=nearest(key, SECTIONS[section].keys)
                )


def _from_file(document: dict[str, Any], file: Path) -> dict[str, dict[str, Any]]:
    return {
        name: {
            key_name: _value(key, document.get(name, {}).get(key_name, key.default), f"{file}: [{name}] {key_name}")
            for key_name, key in section.keys.items()
        }
        for name, section in SECTIONS.items()
    }


def _from_environment(env: Mapping[str, str]) -> dict[tuple[str, str], Any]:
    """What the environment sets. `STRAND_SPARK_MASTR` is an error; a variable of no section is not ours to judge."""
    values: dict[tuple[str, str], Any] = {}
    for variable, text in env.items():
        if variable in VARIABLES and text:
            section, key = VARIABLES[variable]
            values[section, key] = _value(SECTIONS[section].keys[key], text, f"${variable}")
        elif variable not in VARIABLES and variable not in OTHER_VARIABLES and _names_a_section(variable):
            raise BadRequest(f"there is no setting ${variable}", hint=nearest(variable, VARIABLES))
    return values


def _names_a_section(variable: str) -> bool:
    return any(variable.startswith(f"STRAND_{section.upper()}_") for section in SECTIONS)


def _value(key: Key, value: object, where: str) -> Any:
    try:
        return key.read(value)
    except ValueError as error:
        is_table = isinstance(value, dict) or str(value).lstrip().startswith("{")  # whose values may be secrets
        shown = "not to be read" if is_table else redacted(repr(value))
        raise BadRequest(f"{where} is {shown}, expected {error}", hint=f"The default is {key.default!r}.") from error


def _sinks(sinks: object, file: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(sinks, dict) or not all(isinstance(settings, dict) for settings in sinks.values()):
        raise BadRequest(f"{file}: sinks are sections of their own", hint="Write [sinks.NAME] and its keys below it.")
    return sinks


def ledger_url(root: Path, url: str) -> str:
    """The absolute form of a ledger's URL; a relative SQLite path starts at the lake's folder."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in _POSTGRES_SCHEMES:
        if not urlsplit(url).path.strip("/"):
            raise BadRequest("the ledger's URL names no database", hint="Write postgresql://USER@HOST:5432/DATABASE.")
        if not urlsplit(url).hostname:  # Spark knows no sockets but TCP's
            raise BadRequest("the ledger's URL names no host", hint="Write postgresql://USER@HOST:5432/DATABASE.")
        return url
    if scheme != "sqlite" or not rest.startswith("/") or not rest.strip("/"):
        raise BadRequest(
            f"can't use {scheme + '://…' if separator else repr(url.partition('?')[0])} as a ledger",
            hint=f"Write {DEFAULT_LEDGER} (relative to {FILE_NAME}), sqlite:////absolute/path, or postgresql://…",
        )
    if "?" in rest:  # a folder may have one in its name; an address that ends in options is not what it looks like
        raise BadRequest(f"the ledger's address has options: {shown_address(url)}", hint="Name the file alone.")
    return f"{_SQLITE}{os.path.normpath(root / rest[1:])}"


def warehouse_uri(root: Path, warehouse: str) -> str:
    """The absolute URI of a warehouse.

    A path goes into the URI as it is, and not percent-encoded: Hadoop and PyIceberg don't decode, and would make a
    folder that is really called `my%20lake`.
    """
    scheme, separator, rest = warehouse.partition("://")
    if not separator:
        return f"file://{os.path.normpath(root / Path(warehouse).expanduser())}"
    if (scheme == "file" and rest.startswith("/")) or (scheme == "s3" and rest.strip("/")):
        return f"{scheme}://{rest.rstrip('/')}"
    raise BadRequest(
        f"can't use {shown_address(warehouse)!r} as a warehouse",
        hint="Write a path, file:///path or s3://bucket/prefix.",
    )


def _given_values(ledger: str, warehouse: str, store: Store) -> dict[tuple[str, str], object]:
    """What a new lake's file says itself; the other keys stand there as comments, with their defaults."""
    s3 = {("s3", name): value for name, value in asdict(store).items() if value is not None}
    return {("lake", "ledger"): ledger, ("lake", "warehouse"): warehouse, **s3}
