"""forward: rows go to another lake's server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline.errors import BadRequest
from strandline.settings_text import Key
from strandline.sinks.keys import count, one_of, plain_text, size, span, url, variable
from strandline.sinks.kind import Sender, SinkType

if TYPE_CHECKING:
    from strandline.sinks.forward import Forward

_TOKENS = ("token", "token_env", "token_file")


def _check(settings: Mapping[str, Any], where: str) -> None:
    if sum(name in settings for name in _TOKENS) > 1:
        raise BadRequest(f"{where}: more than one token", hint="Give one of token, token_env and token_file.")
    if "_seq" in settings.get("drop_columns", []):
        raise BadRequest(f"{where}: a forward sink can't drop _seq", hint="The receiver knows rows by it.")


def _make(sender: Sender) -> Forward:
    from strandline.sinks.forward import Forward

    return Forward(
        sender.settings,
        lake_id=sender.lake_id,
        sink_id=sender.sink.sink_id,
        start_seq=sender.sink.start_seq,
        root=sender.root,
        receiver=sender.sink.receiver,
        generation=sender.generation,
    )


TYPE = SinkType(
    name="forward",
    keys={
        "url": Key(None, url("http", "https"), "the receiver's root", is_address=True),
        "gateway": Key(None, plain_text, "this lake's name at the receiver; without it the lake's id"),
        "token": Key(None, plain_text, "the token itself; it is put away, and never shown", is_secret=True),
        "token_env": Key(None, variable, "the environment variable that has the token", is_sensitive=True),
        "token_file": Key(None, plain_text, "the file that has the token", is_sensitive=True),
        "format": Key("arrow", one_of("arrow", "ndjson"), "how rows are sent"),
        "compression": Key("zstd", one_of("zstd", "gzip", "none"), "how bodies are compressed"),
        "chunk_rows": Key(5000, count, "how many rows one request carries at most"),
        "chunk_bytes": Key(
            4 << 20, size, "how many bytes one request carries at most, before it is compressed", unit="bytes"
        ),
        "timeout": Key(30.0, span, "how long an answer may take", unit="s"),
    },
    make=_make,
    required=("url",),
    place=("url",),
    check=_check,
    in_place_of=(frozenset(_TOKENS),),
    where_secrets_go="Addresses are shown and logged. Use token_file, token_env or token, which is put away.",
    has_receiver=True,
)
