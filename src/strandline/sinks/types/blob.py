"""blob: each unit of rows becomes an object in a folder or a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline.errors import BadRequest
from strandline.settings_text import Key
from strandline.sinks.keys import flag, one_of, plain_text, url
from strandline.sinks.kind import Sender, SinkType

if TYPE_CHECKING:
    from strandline.model.delivery.sinks import Stream
    from strandline.sinks.blob import Blob


def _check(settings: Mapping[str, Any], where: str) -> None:
    if settings.get("format", "parquet") == "parquet" and settings.get("compression") == "gzip":
        raise BadRequest(f"{where}: Parquet is written with zstd", hint="Leave compression out, or use format=jsonl.")


def _make(sender: Sender) -> Blob:
    from strandline.ledger.sinks.deliveries import UNKNOWN
    from strandline.sinks.blob import Blob, Remembered

    def remember(stream: Stream) -> Remembered:
        noted = sender.noted(stream)
        return Remembered() if noted is None else Remembered(noted.mark.epoch > UNKNOWN, noted.acked_epoch > 0)

    return Blob(
        sender.settings,
        lake_id=sender.lake_id,
        sink_id=sender.sink.sink_id,
        spark=sender.spark,
        start_seq=sender.sink.start_seq,
        take_over=sender.take_over,
        name=sender.sink.name,
        delivered=lambda: sender.has_delivered(None),
        remember=remember,
        name_of=sender.name_of,
        generation=sender.generation,
    )


TYPE = SinkType(
    name="blob",
    keys={
        "uri": Key(None, url("file", "s3"), "the folder, or the bucket and prefix", is_address=True),
        "format": Key("parquet", one_of("parquet", "jsonl"), "what the objects are; jsonl: one JSON object a line"),
        "compression": Key("zstd", one_of("zstd", "gzip"), "how JSON lines are compressed; Parquet is with zstd"),
        "endpoint": Key(
            None, url("http", "https"), "of an object store that is not AWS, addressed by path", is_address=True
        ),
        "region": Key(None, plain_text, "of the bucket; without it AWS_REGION, or what the bucket says"),
        "manifest": Key(False, flag, "keep a `_manifest.jsonl` in each stream's folder"),
        "taken_away": Key(False, flag, "readers take objects away: the mark alone says what was delivered"),
    },
    make=_make,
    required=("uri",),
    place=("uri", "endpoint"),
    check=_check,
    where_secrets_go="Addresses are shown and logged. The store's credentials come from the environment or ~/.aws.",
    when_shared="a prefix belongs to the sink that writes there first, and the other one's deliveries park",
)
