"""forward: rows to another lake's server over HTTP, chunk by chunk.

The receiver keeps a mark of every stream and moves it in the transaction that stores a chunk, so a chunk that is sent
twice is stored once. What was acked is remembered while this process lives; a process that starts asks the receiver
where it is.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import certifi
import httpx
import orjson
import pyarrow as pa

from strandline.engines.duck.ranges import read_range
from strandline.errors import Environment, Forbidden, Unauthorized
from strandline.failpoints import fail
from strandline.json_types import Json, JsonObject
from strandline.model.delivery import inbound
from strandline.model.delivery.sinks import DeadLetter, SentChunk, Shipped, SinkSettings, Standing, Stream
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import COMMIT, ORIGIN, ORIGIN_COMMIT, ORIGIN_REMOVED, REMOVED
from strandline.model.values.row_digest import digest_of
from strandline.model.values.wire import decode
from strandline.redaction import remember
from strandline.sinks import answers
from strandline.sinks.bodies import CONTENT_TYPES, compress, uncompressed
from strandline.sinks.chunks import Considered, UnitRows, cut
from strandline.sinks.destination import Later, Park, Resume, Unit, letters_of
from strandline.sinks.prefetch import prefetched

MAX_DEAD = 100
ANSWER_BYTES = 1 << 20
_PASSED_ON = {ORIGIN_COMMIT: COMMIT, ORIGIN_REMOVED: REMOVED}
WHOLE_CHUNK = 10
"""A chunk of this many rows, all of them refused, says more about the receiver than about the rows."""


@dataclass(frozen=True)
class _Answer:
    """What came back; `body` is its JSON, or None when it is none."""

    status: int
    headers: Mapping[str, str]
    body: Json


@dataclass(frozen=True)
class _Body:
    """A chunk as it travels."""

    chunk: UnitRows
    data: bytes
    batch_id: str
    digest: str


def _certificates() -> ssl.SSLContext:
    """The authorities to trust. To read them takes longer than a small delivery, so a process does it once a file."""
    file = os.environ.get("SSL_CERT_FILE") or certifi.where()
    return _read_certificates(file, Path(file).stat().st_mtime_ns if Path(file).exists() else 0)


@lru_cache(maxsize=1)
def _read_certificates(_file: str, _saved_ns: int) -> ssl.SSLContext:
    return httpx.create_ssl_context()


class Forward:
    """A receiver, as one sink of one lake sees it. `settings` are the sink's of now: its address, and our token."""

    def __init__(
        self,
        settings: SinkSettings,
        *,
        lake_id: str,
        sink_id: str,
        start_seq: int,
        root: Path,
        receiver: str | None = None,
        generation: str | None = None,
    ) -> None:
        """`receiver` is the lake id that the sink has pinned; `generation` is this lake's own."""
        self._settings = settings
        self._receiver = receiver
        self._generation = generation
        self._lake_id = lake_id
        self._sink_id = sink_id
        self._start_seq = start_seq
        self._root = root
        self._gateway = settings["gateway"] or lake_id
        self._token = self._read_token()
        self._acked: dict[str, int] = {}
        """By delivery: how far the receiver has confirmed it to this process."""

    @cached_property
    def _client(self) -> httpx.Client:
        """Made by the first request: it costs more than all the rest of an idle tick."""
        url, timeout = self._settings["url"], self._settings["timeout"]
        return httpx.Client(base_url=url, timeout=timeout, follow_redirects=False, verify=_certificates())

    def close(self) -> None:
        """Let go of the connection, if there is one."""
        if "_client" in self.__dict__:
            self._client.close()

    # -- asking --------------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """One question that needs the token and changes nothing."""
        answer = self._ask(Stream("probe", "probe", "probe"), "probe")
        if answer.status == 401:
            raise Unauthorized(
                f"{self._settings['url']} does not accept the token, or there is none",
                hint="The receiver makes one with `strand token create GATEWAY`; set token_file, token_env or token.",
            )
        if answer.status == 403:
            raise Forbidden(
                f"the token is not one for the gateway {self._gateway!r}",
                hint="The receiver makes it with `strand token create GATEWAY`; set gateway=… to the same name.",
            )
        if answer.status not in (200, 404) or self._read(answer) is None:
            raise Environment(f"{self._settings['url']} answers {answer.status}", hint="Is it a strand server?")

    def look(self) -> None:
        """The same question: it writes nothing."""
        self.probe()

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...] = ()) -> Standing:
        """Where the receiver is in a stream. Only its own document counts: any other page says nothing about it."""
        answer = self._ask_twice(stream, table)
        if answer.status != 404:
            self._refuse(answer)
        standing = self._read(answer)
        if standing is None:
            raise Later(f"{self._settings['url']} answers {answer.status} without a mark: is it the receiver?")
        if standing.lake == self._lake_id:
            raise Park(f"{self._settings['url']} is this lake's own server: its rows would come back to it for ever")
        if self._receiver is None:
            self._receiver = standing.lake  # chunks name from now on the lake that they are for
        return standing

    def _read(self, answer: _Answer) -> Standing | None:
        """What a receiver's own document says of a stream; None for any other page."""
        return (answers.no_mark_of if answer.status == 404 else answers.standing_of)(answer.body)

    def replayed(self, stream: Stream, table: str) -> frozenset[int]:
        """The dead letters of a stream that the receiver has stored by a replay."""
        seqs: list[int] = []
        more = True
        while more:
            answer = self._ask_twice(stream, f"{table}/replayed", after=seqs[-1] if seqs else 0)
            self._refuse(answer)
            page = answer.body if isinstance(answer.body, dict) else {}
            listed = page.get("seqs")
            if not isinstance(listed, list) or not all(isinstance(seq, int) for seq in listed):
                raise Later(f"{self._settings['url']} answers {answer.status} without a list of replayed letters")
            seqs += listed
            more = bool(page.get("more")) and bool(listed)
        return frozenset(seqs)

    def _refuse(self, answer: _Answer) -> None:
        """Raise what an answer to a question means that is not 200."""
        verdict = answers.judge(answer.status, answer.headers, answer.body)
        if isinstance(verdict, answers.Acked):
            return
        if isinstance(verdict, answers.Wait):
            raise Later(verdict.reason, told_s=verdict.told_s)
        ours = isinstance(answer.body, dict) and isinstance(answer.body.get("error"), dict)
        if isinstance(verdict, answers.Unknown) or not ours:
            raise Later(getattr(verdict, "reason", str(verdict)))
        raise Park(getattr(verdict, "reason", str(verdict)))

    def _ask_twice(self, stream: Stream, path: str, **more: Any) -> _Answer:
        """Ask; a token that is not accepted is read again once."""
        answer = self._ask(stream, path, **more)
        return self._ask(stream, path, **more) if answer.status == 401 and self._renewed() else answer

    def _ask(self, stream: Stream, path: str, **more: Any) -> _Answer:
        source = {"lake": self._lake_id, "sink": self._sink_id, "stream": stream.text(), **more}
        try:
            return self._request("GET", path, params=source)
        except httpx.HTTPError as error:
            raise Later(f"{self._settings['url']} can't be reached: {_text_of(error)}") from error

    # -- sending -------------------------------------------------------------------------------------------------------

    def ship(self, unit: Unit) -> Shipped:
        """Send every chunk of the unit that the receiver has not confirmed."""
        sending = _Sending(self, unit)
        key = unit.delivery.delivery_id
        self._acked.setdefault(key, max(unit.confirmed, unit.delivery.since))
        try:
            for body in prefetched(sending.bodies()):
                sending.send(body)
        except Later as error:
            error.progressed = sending.progressed
            raise
        except Resume:
            self._acked.pop(key, None)
            raise
        self._acked.pop(key, None)
        return Shipped(
            rows=sending.considered.kept - sending.buried,
            withheld=sending.considered.withheld,
            size_bytes=sending.sent_bytes,
            files_opened=unit.rows.files,
            dead=sending.buried,
            chunk=sending.last,
        )

    def acked(self, unit: Unit) -> int:
        """How far the receiver has confirmed a delivery."""
        return self._acked[unit.delivery.delivery_id]

    def note_acked(self, unit: Unit, chunk: UnitRows) -> None:
        """The receiver has this chunk."""
        self._acked[unit.delivery.delivery_id] = chunk.until

    def post(self, unit: Unit, body: _Body) -> answers.Verdict:
        """Send one chunk and say what its answer means; the token is renewed once when it is not accepted."""
        delivery = unit.delivery
        opens = body.chunk.since == self._start_seq
        sent = self._described(
            body,
            delivery.stream,
            delivery.epoch,
            opens=opens,
            key=unit.sent_key,
            digest=body.digest if body.chunk.rows.num_rows else None,
            hole=unit.hole_upto if unit.hole_upto > body.chunk.since else None,
            lacking=unit.lacking_upto if unit.lacking_upto > body.chunk.since else None,
        )
        return self._post(delivery.table, {**_content(delivery.settings), **sent.headers()}, body.data, sent)

    def _described(self, body: _Body, stream: Stream, epoch: int, **more: Any) -> inbound.Chunk:
        """What a chunk says about itself."""
        chunk = body.chunk
        source = inbound.Source(self._lake_id, self._sink_id, stream)
        parties: dict[str, Any] = {"generation": self._generation, "receiver": self._receiver}
        return inbound.Chunk(
            source, epoch, chunk.since, chunk.until, chunk.rows.num_rows, body.batch_id, **parties, **more
        )

    def _post(self, table: str, headers: Mapping[str, str], data: bytes, sent: inbound.Chunk) -> answers.Verdict:
        verdict = self._post_once(table, headers, data, sent)
        if isinstance(verdict, answers.Renew) and self._renewed():
            return self._post_once(table, headers, data, sent)
        return verdict

    def _post_once(self, table: str, headers: Mapping[str, str], data: bytes, sent: inbound.Chunk) -> answers.Verdict:
        fail("forward.before_send")
        try:
            answer = self._request("POST", table, headers=headers, content=data)
        except httpx.HTTPError as error:
            return answers.Unknown(f"{self._settings['url']} can't be reached: {_text_of(error)}")
        fail("forward.after_send")
        verdict = answers.judge(answer.status, answer.headers, answer.body)
        if isinstance(verdict, answers.Acked) and not _acknowledges(answer.body, sent):
            return answers.Unknown(f"{answer.status} without the mark that an acknowledgement carries")
        return verdict

    def _request(self, method: str, table: str, **rest: Any) -> _Answer:
        """One request, whose answer may take only so long and be only so large: any program may have that port."""
        headers = {**rest.pop("headers", {}), **self._authorization()}
        deadline_s = time.monotonic() + 2 * self._settings["timeout"]
        path = f"/v1/inbound/{self._gateway}/{table}"
        with self._client.stream(method, path, headers=headers, **rest) as answer:
            content = b""
            for part in answer.iter_bytes():
                content += part
                if len(content) > ANSWER_BYTES or time.monotonic() > deadline_s:
                    raise httpx.ReadError("its answer does not end")
            return _Answer(answer.status_code, answer.headers, _json(content))

    def replay(self, letter: DeadLetter, settings: SinkSettings) -> None:
        """Send a dead letter again, once however often: the receiver remembers those it has stored."""
        chunk = UnitRows(letter.seq - 1, letter.seq, decode(letter.payload))
        settings = {**settings, "format": "arrow"}  # which needs no schema to be read as it was written
        body = self.encoded(chunk, letter.stream, letter.epoch, settings, None)
        sent = self._described(body, letter.stream, letter.epoch, dead=letter.seq)
        verdict = self._post(letter.table, {**_content(settings), **sent.headers()}, body.data, sent)
        if not isinstance(verdict, answers.Acked):
            raise Park(getattr(verdict, "reason", str(verdict)))

    def encoded(
        self, chunk: UnitRows, stream: Stream, epoch: int, settings: SinkSettings, schema: Schema | None
    ) -> _Body:
        """A chunk as bytes, with the id that says what they are."""
        raw = uncompressed(_as_sent(chunk.rows), settings["format"], schema)
        made = inbound.batch_id(self._sink_id, stream.text(), epoch, chunk.since, chunk.until, raw)
        return _Body(chunk, compress(raw, settings["compression"]), made, digest_of([chunk.rows]))

    # -- this sender ---------------------------------------------------------------------------------------------------

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _read_token(self) -> str | None:
        settings = self._settings
        if settings["token_env"]:
            return remember(os.environ.get(str(settings["token_env"])))
        if settings["token_file"]:
            try:
                return remember((self._root / str(settings["token_file"])).read_text(encoding="utf-8").strip())
            except OSError as error:
                raise Environment(
                    f"can't read the token file {settings['token_file']}: {error.strerror}",
                    hint="A relative path starts at the lake's folder.",
                ) from error
        return remember(settings["token"])

    def _renewed(self) -> bool:
        """Read the token again; True when it is another one."""
        before, self._token = self._token, self._read_token()
        return self._token != before


class _Sending:
    """One unit on its way."""

    def __init__(self, forward: Forward, unit: Unit) -> None:
        self._forward = forward
        self._unit = unit
        self.considered = Considered()
        self.buried = 0
        self.sent_bytes = 0
        self.progressed = False
        self.last: SentChunk | None = None
        """The last chunk with rows, as the receiver keeps it."""

    def bodies(self) -> Iterator[_Body]:
        """The unit's chunks, encoded, from where the receiver is."""
        unit, settings = self._unit, self._unit.delivery.settings
        for chunk in cut(
            read_range(unit.rows),
            schema=unit.rows.schema,
            since=unit.delivery.since,
            until=unit.delivery.until,
            rows=settings["chunk_rows"],
            size_bytes=settings["chunk_bytes"],
            dead=unit.dead,
            considered=self.considered,
        ):
            if chunk.until > self._forward.acked(unit):
                yield self._encoded(chunk)

    def _encoded(self, chunk: UnitRows) -> _Body:
        delivery = self._unit.delivery
        return self._forward.encoded(chunk, delivery.stream, delivery.epoch, delivery.settings, self._unit.schema)

    def send(self, body: _Body) -> None:
        """Send one chunk until it is acked, whole or in parts; else raise what has to happen first."""
        verdict = self._forward.post(self._unit, body)
        self.sent_bytes += len(body.data)
        chunk = body.chunk
        match verdict:
            case answers.Acked(kept):
                self._forward.note_acked(self._unit, chunk)
                self.progressed = True
                if kept is not None:
                    self.last = kept
                elif chunk.rows.num_rows:
                    self.last = SentChunk(chunk.since, chunk.until, body.digest)
            case answers.Gap(mark):
                raise Resume(mark)
            case answers.Wait(reason, told_s):
                raise Later(reason, told_s=told_s)
            case answers.Unknown(reason):
                raise Later(reason)
            case answers.Renew(reason):
                raise Park(f"{reason}. The token was read again, and is not accepted either.")
            case answers.LessAtOnce(reason):
                self._in_parts(chunk, reason, {"status": 413, "message": reason})
            case answers.BadRows(reason, places, count) if places:
                self._without_named(chunk, reason, places, count)
            case answers.BadRows(reason):
                self._in_parts(chunk, reason, {"message": reason})
            case answers.Refusal(reason):
                raise Park(reason)

    def _in_parts(self, chunk: UnitRows, reason: str, answer: JsonObject) -> None:
        """Half the rows at a time, down to the one that is refused alone."""
        if chunk.rows.num_rows == 0:
            raise Park(reason)
        if chunk.rows.num_rows == 1:
            self._bury(chunk, {0: answer}, reason)
            return
        for half in chunk.halves():
            self.send(self._encoded(half))

    def _without_named(self, chunk: UnitRows, reason: str, places: Mapping[int, JsonObject], count: int | None) -> None:
        rows = chunk.rows.num_rows
        if any(place not in range(rows) for place in places):
            raise Park(f"{reason}. It names rows that the chunk does not have.")
        if max(count or 0, len(places)) >= rows >= WHOLE_CHUNK:
            raise Park(f"{reason}. All {rows} rows of a chunk were refused.")
        if (count or 0) > MAX_DEAD:
            raise Park(f"{reason}. {count} rows of a chunk were refused.")
        self._bury(chunk, {place: {"status": 422, **row} for place, row in places.items()}, reason)

    def _bury(self, chunk: UnitRows, places: Mapping[int, JsonObject], reason: str) -> None:
        """Make dead letters of these rows, then send the same range without them."""
        if len(self._unit.dead) + self.buried + len(places) > MAX_DEAD:
            raise Park(f"{reason}. More than {MAX_DEAD} rows of this unit were refused.")
        standing = self._forward.standing(self._unit.delivery.stream, self._unit.delivery.table)
        mark = standing.mark
        if mark is not None and mark.epoch == self._unit.delivery.epoch and mark.seq >= chunk.until:
            # It was stored, and only the answer was lost: a dead letter of it would be stored a second time.
            self._forward.note_acked(self._unit, chunk)
            self.last = standing.chunk
            return
        self._unit.bury(letters_of(chunk.rows, places))
        self.buried += len(places)
        self.send(self._encoded(chunk.without(list(places))))


def _as_sent(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without where the rows came from last: the receiver writes its own. But a version stays one on its whole way."""
    names = [_PASSED_ON.get(name, name) for name in rows.schema.names]
    rows = rows.rename_columns(names)
    return rows.drop_columns([name for name in ORIGIN if name in names])


def _content(settings: SinkSettings) -> dict[str, str]:
    headers = {"Content-Type": CONTENT_TYPES[settings["format"]]}
    if settings["compression"] != "none":
        headers["Content-Encoding"] = settings["compression"]
    return headers


def _acknowledges(body: Json, sent: inbound.Chunk) -> bool:
    """Whether an answer says that this chunk is there: a page of a proxy in between does not."""
    if sent.dead is not None:
        return isinstance(body, dict) and isinstance(body.get("stored"), int)
    mark = answers.mark_of(body)
    return mark is not None and mark.epoch == sent.epoch and mark.seq >= sent.until


def _json(content: bytes) -> Json:
    try:
        document: Json = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return document


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
