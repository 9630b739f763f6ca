"""Settings: strict about names and values, absolute in what comes out, with the environment on top."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from strandline import config, config_keys, settings_text
from strandline.errors import BadRequest, NotFound


def lake_with(root: Path, text: str = "") -> Path:
    (root / "strand.toml").write_text(text, encoding="utf-8")
    return root


def load(root: Path, text: str = "", **env: str) -> config.LakeConfig:
    return config.load(lake_with(root, text), env=env)


def test_an_empty_file_is_a_lake_with_every_default(tmp_path: Path) -> None:
    """Nothing has to be written down; the ledger and the warehouse lie in the lake's own folder."""
    lake = load(tmp_path)
    assert lake.root == tmp_path
    assert lake.ledger == f"sqlite:///{tmp_path}/ledger.db"
    assert lake.ledger_path == tmp_path / "ledger.db"
    assert lake.warehouse == f"file://{tmp_path}/warehouse"
    assert (lake.spark.master, dict(lake.spark.conf)) == ("local[*]", {})
    assert (lake.flush.max_bytes, lake.flush.max_age_s) == (64 * 1024 * 1024, 60.0)
    assert (lake.lease.ttl_s, lake.lease.wait_s) == (30.0, 300.0)
    assert lake.server == config.ServerConfig(
        listen="127.0.0.1:8400",
        metrics="token",
        max_body=64 << 20,
        read_timeout_s=30.0,
        max_connections=512,
        max_requests=16,
        max_bytes=4 << 30,
        queue=256,
        threads=16,
    )
    assert lake.sinks == {}


def test_the_file_of_the_manual_is_read_whole(tmp_path: Path) -> None:
    lake = load(
        tmp_path,
        """
        [lake]
        ledger = "sqlite:///meta/ledger.db"
        warehouse = "s3://bucket/prefix/"
        [spark]
        master = "spark://host:7077"
        conf = { "spark.executor.memory" = "2g" }
        [flush]
        max_bytes = "1GB"
        max_age = "5m"
        [lease]
        ttl = "10s"
        wait = "0s"
        [sinks.archive]
        type = "blob"
        uri = "file:///var/archive"
        every = "5m"
        [server]
        listen = "0.0.0.0:80"
        """,
    )
    assert lake.ledger_path == tmp_path / "meta" / "ledger.db"
    assert lake.warehouse == "s3://bucket/prefix"
    assert lake.spark == config.SparkConfig("spark://host:7077", {"spark.executor.memory": "2g"})
    assert (lake.flush.max_bytes, lake.flush.max_age_s, lake.lease.wait_s) == (10**9, 300.0, 0.0)
    assert lake.sinks == {"archive": {"type": "blob", "uri": "file:///var/archive", "every": "5m"}}


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64MiB", 64 << 20),
        ("1GB", 10**9),
        ("512k", 512 << 10),
        ("1.5 KiB", 1536),
        ("10b", 10),
        ("7", 7),
        ("2tb", 2 * 10**12),
    ],
)
def test_sizes_are_read_in_the_units_people_write(text: str, size_bytes: int) -> None:
    assert settings_text.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("60s", 60), ("5m", 300), ("2h", 7200), ("7d", 604800), ("1.5 h", 5400)]
)
def test_durations_are_read_in_the_units_people_write(text: str, seconds: float) -> None:
    assert settings_text.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "60", "-5s", "5 minutes", "1h30m", "s"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    """A bare number most of all: some would mean seconds, and some milliseconds."""
    with pytest.raises(ValueError, match="a duration such as"):
        settings_text.parse_duration(text)


@pytest.mark.parametrize("text", ["", "big", "-1k", "1XB", "MiB"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        settings_text.parse_size(text)


def test_a_size_may_be_a_plain_number_of_bytes(tmp_path: Path) -> None:
    assert load(tmp_path, "[flush]\nmax_bytes = 1000").flush.max_bytes == 1000


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[spork]\n", "'spark'"),
        ("[spark]\nmastr = 'x'", "'master'"),
        ("[sink.a]\n", "'sinks'"),
        ("[flush]\nage = 1", "'max_age'"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest_known_one_and_the_file(
    tmp_path: Path, text: str, nearest: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "strand.toml") in caught.value.message
    assert nearest in caught.value.hint


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("[flush]\nmax_age = 60", "[flush] max_age is 60", "a duration such as"),
        ("[flush]\nmax_bytes = 'lots'", "[flush] max_bytes is 'lots'", "a size such as"),
        ("[flush]\nmax_bytes = true", "[flush] max_bytes is True", "a size such as"),
        ("[lease]\nttl = '0s'", "[lease] ttl is '0s'", "longer than nothing"),
        ("[lake]\nledger = 5", "[lake] ledger is 5", "a string"),
        ("[spark]\nmaster = ''", "[spark] master is ''", "a string that is not empty"),
        ("[spark]\nconf = 5", "[spark] conf is 5", "a table of Spark settings"),
        ("[spark.conf]\na = [1]", "[spark] conf", "for 'a'"),
        ("[server]\nlisten = '8400'", "[server] listen is '8400'", "HOST:PORT"),
        ("[server]\nlisten = 'localhost:99999'", "[server] listen", "HOST:PORT"),
        ("[server]\nmax_body = 0", "[server] max_body is 0", "larger than nothing"),
        ("[server]\nread_timeout = '0s'", "[server] read_timeout is '0s'", "longer than nothing"),
        ("[server]\nthreads = 0", "[server] threads is 0", "a whole number"),
        ("[server]\nqueue = 'many'", "[server] queue is 'many'", "a whole number"),
        ("[server]\nmax_requests = true", "[server] max_requests is True", "a whole number"),
        ("spark = 1", "spark must be a section", ""),
        ("[sinks]\narchive = 1", "sinks are sections of their own", ""),
    ],
)
def test_a_wrong_value_says_where_it_is_and_what_was_expected(
    tmp_path: Path, text: str, where: str, expected: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        load(tmp_path, text)
    assert where in caught.value.message
    assert expected in caught.value.message
    assert caught.value.hint


def test_broken_toml_names_the_file_the_line_and_the_column(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"strand\.toml is not TOML: .*line 2, column 12"):
        load(tmp_path, "[lake]\nwarehouse= unquoted\n")


def test_a_file_that_is_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "strand.toml").write_bytes(b"[lake]\n# caf\xe9\n")
    with pytest.raises(BadRequest, match="is not UTF-8"):
        config.load(tmp_path, env={})


def test_spark_settings_may_be_dotted_names_and_numbers(tmp_path: Path) -> None:
    """TOML reads unquoted dots as nested tables; a person means Spark's flat names."""
    lake = load(tmp_path, "[spark.conf]\nspark.sql.shuffle.partitions = 4\n'spark.ui.enabled' = false\n")
    assert lake.spark.conf == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}


def test_every_key_can_be_set_by_the_environment_which_wins(tmp_path: Path) -> None:
    lake = load(
        tmp_path,
        "[spark]\nmaster = 'local[1]'\nconf = { a = '1', b = '2' }",
        STRAND_SPARK_MASTER="local[2]",
        STRAND_SPARK_CONF='{"b": 3, "c": true}',
        STRAND_LAKE_LEDGER="sqlite:///other.db",
        STRAND_LAKE_WAREHOUSE="/elsewhere",
        STRAND_FLUSH_MAX_BYTES="1MiB",
        STRAND_FLUSH_MAX_AGE="1s",
        STRAND_LEASE_TTL="2s",
        STRAND_LEASE_WAIT="3s",
        STRAND_SERVER_LISTEN="[::1]:9000",
        STRAND_SERVER_MAX_REQUESTS="3",
        STRAND_SERVER_READ_TIMEOUT="5s",
    )
    assert lake.spark == config.SparkConfig("local[2]", {"a": "1", "b": "3", "c": "true"})
    assert lake.ledger_path == tmp_path / "other.db"
    assert lake.warehouse == "file:///elsewhere"
    assert lake.flush == config.FlushConfig(1 << 20, 1.0, 900.0)
    assert lake.lease == config.LeaseConfig(2.0, 3.0)
    assert (lake.server.listen, lake.server.max_requests, lake.server.read_timeout_s) == ("[::1]:9000", 3, 5.0)


def test_an_empty_variable_counts_as_absent(tmp_path: Path) -> None:
    assert load(tmp_path, "[spark]\nmaster = 'local[1]'", STRAND_SPARK_MASTER="").spark.master == "local[1]"


def test_a_misspelt_variable_is_an_error_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    """`STRAND_TOKEN` may be anybody's; `STRAND_SPARK_…` can only be meant for us."""
    reserved = dict.fromkeys(config_keys.OTHER_VARIABLES, "x")
    load(tmp_path, STRAND_TOKEN="secret", **reserved)
    with pytest.raises(BadRequest, match="STRAND_SPARK_MASTR") as caught:
        load(tmp_path, STRAND_SPARK_MASTR="x")
    assert "STRAND_SPARK_MASTER" in caught.value.hint


@pytest.mark.parametrize("text", ["not json", "[1]", '{"a": null}'])
def test_a_wrong_value_in_a_variable_names_the_variable(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRequest, match=r"^\$STRAND_SPARK_CONF is "):
        load(tmp_path, STRAND_SPARK_CONF=text)


def test_the_catalog_is_a_file_of_its_own_beside_a_sqlite_ledger(tmp_path: Path) -> None:
    lake = load(tmp_path, "[lake]\nledger = 'sqlite:///meta/ledger.db'")
    assert lake.catalog_uri == f"jdbc:sqlite:{tmp_path}/meta/catalog.db?journal_mode=WAL&busy_timeout=30000"


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_the_catalog_of_a_postgres_ledger_is_the_same_database_without_the_password_in_its_uri(
    tmp_path: Path, scheme: str
) -> None:
    """URIs are printed and logged, so the password travels apart, and is shown nowhere."""
    settings = "sslmode=require&application_name=x"
    lake = load(tmp_path, f"[lake]\nledger = '{scheme}://me:s%40fe@db.host:5433/lake?{settings}'")
    assert lake.catalog_uri == "jdbc:postgresql://db.host:5433/lake?sslmode=require&tcpKeepAlive=true"
    assert lake.ledger_shown == f"{scheme}://me:***@db.host:5433/lake?{settings}"
    assert "s%40fe" not in repr(lake)
    assert lake.ledger_path is None


def test_a_folder_with_spaces_and_signs_keeps_its_name_in_the_uri(tmp_path: Path) -> None:
    """Hadoop does not decode %20: an encoded URI would make a folder of that very name."""
    root = tmp_path / "my lake #1 100%"
    root.mkdir()
    assert load(root).warehouse == f"file://{root}/warehouse"


@pytest.mark.parametrize(
    "ledger",
    [
        "ledger.db",
        "mysql://host/db",
        "sqlite://",
        "sqlite:///",
        "postgresql://host",
        "postgresql:///db",
        "sqlite:///a?mode=ro",
    ],
)
def test_a_ledger_that_cannot_be_used_is_refused(tmp_path: Path, ledger: str) -> None:
    with pytest.raises(BadRequest) as caught:
        load(tmp_path, f"[lake]\nledger = '{ledger}'")
    assert caught.value.hint


@pytest.mark.parametrize("warehouse", ["ftp://host/x", "s3://", "file://relative"])
def test_a_warehouse_that_cannot_be_used_is_refused(tmp_path: Path, warehouse: str) -> None:
    with pytest.raises(BadRequest, match="as a warehouse"):
        load(tmp_path, f"[lake]\nwarehouse = '{warehouse}'")


def test_the_lake_is_the_argument_then_the_variable_then_the_nearest_folder_upwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, named, above = (tmp_path / name for name in ("given", "named", "above"))
    for root in (given, named, above / "deep" / "deeper"):
        root.mkdir(parents=True)
    for root in (given, named, above):
        lake_with(root)
    monkeypatch.chdir(above / "deep" / "deeper")
    monkeypatch.delenv("STRAND_LAKE", raising=False)
    assert config.find_root() == above
    monkeypatch.setenv("STRAND_LAKE", str(named))
    assert config.find_root(None) == named
    assert config.find_root(given) == given


def test_a_given_folder_that_is_no_lake_is_not_found_and_nothing_else_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typo in --lake must not silently write to the lake that happens to be above the working folder."""
    lake_with(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=r"empty is not a lake: it holds no strand\.toml"):
        config.find_root(tmp_path / "empty")
    monkeypatch.setenv("STRAND_LAKE", "absent")
    with pytest.raises(NotFound, match=r"STRAND_LAKE names .*absent, which is not a lake: there is no such folder"):
        config.find_root()


def test_without_any_lake_the_hint_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRAND_LAKE", raising=False)
    with pytest.raises(NotFound) as caught:
        config.find_root()
    assert "strand init DIR" in caught.value.hint
    with pytest.raises(NotFound, match="is not a lake"):
        config.load(tmp_path, env={})


def test_the_default_file_is_read_back_as_the_defaults(tmp_path: Path) -> None:
    """Every key stands in it as a comment that is true: uncommented, the file means the same."""
    file = config.write_default(tmp_path)
    written = config.load(tmp_path, env={})
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line else line for line in file.read_text(encoding="utf-8").splitlines()
    )
    keys = {(section, key) for section, table in tomllib.loads(uncommented).items() for key in table}
    assert keys == set(config_keys.VARIABLES.values())
    file.write_text(uncommented.replace('"spark.driver.memory" = "4g"', ""), encoding="utf-8")
    assert config.load(tmp_path, env={}) == written
    assert written.ledger_path == tmp_path / "ledger.db"
    assert [path.name for path in tmp_path.iterdir()] == ["strand.toml"]


def test_the_default_file_keeps_odd_names(tmp_path: Path) -> None:
    config.write_default(tmp_path, ledger="sqlite:///l'é\"dger.db", warehouse='ware "house"')
    lake = config.load(tmp_path, env={})
    assert lake.ledger_path == tmp_path / "l'é\"dger.db"
    assert lake.warehouse == f'file://{tmp_path}/ware "house"'


def test_a_password_is_put_away_where_only_its_owner_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`strand.toml` is shown around and checked in; libpq's own variables go before what was put away."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.delenv("PGPASSFILE", raising=False)
    file = config.write_default(tmp_path, ledger="postgresql://me:s%40fe@db.host/lake")
    assert "postgresql://me@db.host/lake" in file.read_text() and "s%40fe" not in file.read_text()
    secret = tmp_path / config.PASSWORD_FILE
    assert secret.read_text() == "s@fe" and secret.stat().st_mode & 0o777 == 0o600
    assert secret.parent.stat().st_mode & 0o777 == 0o700
    assert config.load(tmp_path, env={}).ledger == "postgresql://me:s%40fe@db.host/lake"
    monkeypatch.setenv("PGPASSFILE", "/somewhere")
    assert config.load(tmp_path, env={}).ledger == "postgresql://me@db.host/lake"


def test_the_default_file_is_not_written_with_a_bad_value_or_over_another(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        config.write_default(tmp_path, ledger="mysql://host/db")
    assert list(tmp_path.iterdir()) == []
    lake_with(tmp_path, "[lake]\n")
    with pytest.raises(BadRequest, match="is a lake already"):
        config.write_default(tmp_path)
    assert (tmp_path / "strand.toml").read_text() == "[lake]\n"
