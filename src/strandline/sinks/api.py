"""What a package imports that brings a type of sinks of its own: docs/own-sinks.md shows one whole.

The names here stay what they are. Other modules of this room may change from version to version.
"""

from __future__ import annotations

from strandline.model.delivery.sinks import (
    DeadLetter,
    Delivery,
    Mark,
    SentChunk,
    Shipped,
    SinkSettings,
    Standing,
    Stream,
)
from strandline.settings_text import Key, Reader
from strandline.sinks.destination import (
    CountsReplayed,
    Destination,
    Later,
    Marked,
    Park,
    Replays,
    Resume,
    Unit,
    letters_of,
)
from strandline.sinks.keys import count, flag, names, one_of, plain_text, size, span, url, variable
from strandline.sinks.kind import OpenKeys, Sender, SinkType

__all__ = [
    "CountsReplayed", "DeadLetter", "Delivery", "Destination", "Key", "Later", "Mark", "Marked", "OpenKeys", "Park",
    "Reader", "Replays", "Resume", "Sender", "SentChunk", "Shipped", "SinkSettings", "SinkType", "Standing", "Stream",
    "Unit", "count", "flag", "letters_of", "names", "one_of", "plain_text", "size", "span", "url", "variable",
]  # fmt: skip
