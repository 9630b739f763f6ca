"""A sender of one version against a receiver of another, as real processes: what arrives, what parks, what goes on.

No test runs this: it needs a second environment with the older version (`git worktree add OLD ec31a67`, and there `make
setup`). `python tests/kept/crossing.py OLD/.venv/bin NEW/.venv/bin FOLDER [--pairs old-new,new-old,old-old] [NAME]...`
runs the stories of `stories.py` and prints what happened; FOLDER keeps the lakes, and `results.jsonl`.

Every tick, every server and every word of a person is a process of its own, forked from one that has imported that
version. What only prepares (making lakes, appending, flushing) is done by one long-lived process of each version,
because Spark takes its time to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

PREPARES = r"""
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import strandline as sl
for line in sys.stdin:
    names = {"sl": sl}
    try:
        exec(json.loads(line), names)
        answer = {"answer": names.get("answer")}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer, default=str), file=answers, flush=True)
"""

FORKS = r"""
import gc, json, os, sys
import duckdb, httpx, pyarrow
import strandline.backup, strandline.restore, strandline.server.run, strandline.sinks.forward
from strandline import failpoints
from strandline.cli.main import run
gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, asked["out"]), (2, asked["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        failpoints.arm(asked["failpoints"])
        code = 1
        try:
            code = run(asked["arguments"])
        except SystemExit as error:
            code = error.code or 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(pid, flush=True)
"""


class Helper:
    """A process of one version that answers line by line."""

    def __init__(self, python: str, code: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STRAND_")}
        self._process = subprocess.Popen(
            [python, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=clean,
            cwd="/",
        )

    def ask(self, question: Any) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Version:
    """An environment that has one version."""

    def __init__(self, folder: str) -> None:
        self._python = f"{folder}/python"
        self._helpers: dict[str, Helper] = {}

    def _helper(self, code: str) -> Helper:
        if code not in self._helpers:
            self._helpers[code] = Helper(self._python, code)
        return self._helpers[code]

    def prepare(self, code: str) -> Any:
        """Run a few lines of Python; `answer` is what they leave."""
        done = self._helper(PREPARES).ask(code)
        if "error" in done:
            raise RuntimeError(done["error"])
        return done["answer"]

    def start(self, arguments: list[str], out: Path, err: Path, failpoints: str | None) -> int:
        """A command as a process; its id."""
        out.touch()
        err.touch()
        asked = {"arguments": arguments, "out": str(out), "err": str(err), "failpoints": failpoints}
        return int(self._helper(FORKS).ask(asked))

    def wait(self, pid: int) -> int:
        """The exit code of a command."""
        return int(self._helper(FORKS).ask({"wait": pid}))

    def stop(self) -> None:
        """End what was started to help."""
        for helper in self._helpers.values():
            helper.stop()


class Crossing:
    """A sender and a receiver, of a version each, and what should be at the receiver by now."""

    ports = iter(range(int(os.environ.get("CROSSING_PORT", "18500")), 65000))

    def __init__(self, versions: dict[str, Version], folder: Path, sender: str, receiver: str) -> None:
        self.versions = versions
        self.version = {"sender": sender, "receiver": receiver}
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.port = next(self.ports)
        self.server: int | None = None
        self.lines: list[str] = []
        self.problems: list[str] = []
        self.once: list[str] = []
        """Rows of which the sender has acked one copy more, each time they are listed."""
        self.lost: set[str] = set()
        """Rows of a time that the sender has lost: they may be there, once."""
        self._commands = 0
        self.make_receiver()
        self.make("sender", "string?")
        settings = f"url=http://127.0.0.1:{self.port}", "gateway=laptop", f"token={self.token}", "chunk_rows=3"
        given = [word for setting in (*settings, "max_attempts=1") for word in ("--set", setting)]
        self.run("sender", "sink", "add", "central", "--type", "forward", *given)

    # -- processes -----------------------------------------------------------------------------------------------------

    def root(self, side: str) -> Path:
        """The folder of a lake."""
        return self.folder / side

    def tell(self, *words: Any) -> None:
        """What happened, for whoever reads."""
        self.lines.append(" ".join(str(word) for word in words))
        print("   ", self.lines[-1], flush=True)

    def prepare(self, side: str, code: str) -> Any:
        """A few lines of Python in the version of a side; `lake` is its lake."""
        opened = f"with sl.open({str(self.root(side))!r}) as lake:\n"
        return self.versions[self.version[side]].prepare(opened + "".join(f" {line}\n" for line in code.splitlines()))

    def start(self, side: str, arguments: list[str], failpoints: str | None = None) -> tuple[int, Path, Path]:
        """A command of the version of a side; its id, and the files with what it prints."""
        self._commands += 1
        out, err = (self.folder / f"{self._commands}.{kind}" for kind in ("out", "err"))
        return self.versions[self.version[side]].start(arguments, out, err, failpoints), out, err

    def run(self, side: str, *words: str, failpoints: str | None = None, aloud: bool = False) -> Any:
        """A command to its end; its JSON. `code` is its exit code."""
        pid, out, err = self.start(side, ["--lake", str(self.root(side)), "--json", *words], failpoints)
        self.code = self.versions[self.version[side]].wait(pid)
        text = out.read_text() or (err.read_text().strip().splitlines() or [""])[-1]
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"text": text[-500:]}
        if aloud or (self.code and failpoints is None and words[:2] != ("sink", "tick")):
            self.tell("$ strand", *words, "->", self.code, json.dumps(answer)[:600])
        return answer

    def serve(self, failpoints: str | None = None) -> None:
        """Let the receiver listen."""
        listen = ["--lake", str(self.root("receiver")), "--json", "serve", "--listen", f"127.0.0.1:{self.port}"]
        self.server, out, err = self.start("receiver", listen, failpoints)
        for _ in range(600):
            if "listen" in out.read_text():
                return
            time.sleep(0.1)
        raise RuntimeError(f"the receiver does not start: {err.read_text()[-500:]}")

    def stop(self) -> None:
        """Let the receiver end."""
        if self.server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.server, signal.SIGTERM)
            self.versions[self.version["receiver"]].wait(self.server)
            self.server = None

    # -- lakes ---------------------------------------------------------------------------------------------------------

    def make(self, side: str, body: str) -> None:
        """A lake with the table."""
        columns = {"part_id": "string", "n": "long", "body": body}
        where = str(self.root(side))
        code = f"from pathlib import Path\nfrom strandline import create\ncreate.create(Path({where!r})).close()\n"
        self.versions[self.version[side]].prepare(code)
        self.prepare(side, f"lake.create_table('messages', {columns!r})")

    def make_receiver(self) -> None:
        """A receiver that takes no row without a body."""
        self.make("receiver", "string")
        self.token = self.run("receiver", "token", "create", "laptop")["token"]
        self.serve()

    def allow_null(self) -> None:
        """Let the receiver take rows without a body."""
        document = self.run("receiver", "schema", "show")
        document["tables"]["messages"]["columns"]["body"] = "string?"
        path = self.folder / "schema.json"
        path.write_text(json.dumps({"tables": {"messages": document["tables"]["messages"]}}))
        self.run("receiver", "schema", "apply", str(path))

    def upgrade(self, side: str) -> None:
        """The new version opens the lake from here on."""
        self.tell("upgrade of the", side)
        if side == "receiver":
            self.stop()
        self.version[side] = "new"
        if side == "receiver":
            self.serve()
        else:
            self.run("sender", "recover")

    def back_up(self, side: str) -> None:
        """`strand backup`."""
        self.run(side, "backup", str(self.folder / f"backup of {side}"))

    def restore(self, side: str) -> None:
        """`strand restore`, in place."""
        self._replaced(side, lambda: self._restore(side))

    def _restore(self, side: str) -> None:
        words = "restore", str(self.folder / f"backup of {side}"), str(self.root(side)), "--replace"
        pid, _, err = self.start(side, ["--json", *words])
        code = self.versions[self.version[side]].wait(pid)
        self.tell("restore of the", side, "->", code, err.read_text()[-400:] if code else "")

    def copy(self, side: str) -> None:
        """What a snapshot of a disk has."""
        self._replaced(side, lambda: shutil.copytree(self.root(side), self.folder / f"copy of {side}"))

    def put_back(self, side: str) -> None:
        """The disk as it was at the copy."""

        def by_hand() -> None:
            shutil.rmtree(self.root(side))
            shutil.copytree(self.folder / f"copy of {side}", self.root(side))

        self._replaced(side, by_hand)

    def wipe_receiver(self) -> None:
        """An empty lake in the receiver's place; the sender knows its token."""
        self.stop()
        self.root("receiver").rename(self.folder / "gone")
        self.make_receiver()
        self.run("sender", "sink", "set", "central", "--set", f"token={self.token}")

    def _replaced(self, side: str, work: Any) -> None:
        served = side == "receiver" and self.server is not None
        if served:
            self.stop()
        work()
        if served:
            self.serve()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def append(self, *numbers: int | str, body: str | None = "text", refused: bool = False) -> None:
        """Rows of the sender; those that the receiver will refuse are not expected there yet."""
        rows = [{"part_id": f"p{n}", "n": int(re.sub(r"\D", "", str(n))), "body": body} for n in numbers]
        self.prepare("sender", f"lake.append('messages', {rows!r})")
        self.once += [] if refused else [f"p{n}" for n in numbers]

    def lose(self, *numbers: int | str) -> None:
        """The sender goes back to before it had these."""
        self.once = [part for part in self.once if part not in {f"p{n}" for n in numbers}]
        self.lost |= {f"p{n}" for n in numbers}

    def tick(self, failpoints: str | None = None) -> list[Any]:
        """Flush, and a `strand sink tick`; what is stuck after it."""
        self.prepare("sender", "lake.flush('messages')")
        ticked = self.run("sender", "sink", "tick", failpoints=failpoints)
        if failpoints is not None:
            self.tell("a tick with", failpoints, "->", self.code)
        shown = "outcome", "since", "until", "rows", "dead_letters", "note", "error"
        entries = ticked if isinstance(ticked, list) else []
        for entry in entries:
            self.tell("tick:", {name: entry[name] for name in shown if entry.get(name)})
        return [entry for entry in entries if entry["outcome"] in ("parked", "failed", "waiting")]

    def deliver(self, *numbers: int | str) -> None:
        """Rows, and a tick."""
        self.append(*numbers)
        self.tick()

    def settle(self, word: str = "") -> None:
        """Tick and follow the command that a stuck stream names (the one with `word`) until nothing is stuck."""
        for _ in range(4):
            stuck = self.tick()
            if not stuck:
                return
            named = re.findall(r"`strand (sink [^`]+)`", stuck[0].get("error") or "") or ["sink retry"]
            chosen = next((command for command in named if word in command), named[0]).split()
            words = [*chosen[:2], "central", *chosen[2:]]
            answer = self.run("sender", *words, aloud=True)
            if self.code and "--yes" in json.dumps(answer):
                self.run("sender", *words, "--yes", aloud=True)
        if self.tick():
            self.problems.append("a stream stays stuck")

    def replay(self, failpoints: str | None = None) -> None:
        """Every dead letter that is open, again."""
        letters = self.run("sender", "sink", "dead", "central", "--replay", failpoints=failpoints)
        outcomes = [(letter["seq"], letter["outcome"]) for letter in letters] if isinstance(letters, list) else letters
        self.tell("replay:", outcomes)

    def watermark(self) -> int:
        """How far the sender is by its own account."""
        return int(self.run("sender", "sink", "show", "central")["streams"][0]["watermark"])

    def rewind(self, to: int, *again: int | str) -> None:
        """Send these again."""
        self.run("sender", "sink", "rewind", "central", "--stream", "messages", "--to", str(to), "--yes")
        self.once += [f"p{n}" for n in again]

    def check(self, moment: str) -> None:
        """The oracle: what was acked is there as often as it should be, and what the sender has lost at most once."""
        query = "select part_id from messages order by _seq"
        found = self.prepare("receiver", f"answer = [row[0] for row in lake.view().sql({query!r}).rows()]")
        counted, expected = Counter(found), Counter(self.once)
        lost = sorted(part for part, times in expected.items() if counted[part] < times)
        most = {part: expected[part] + (part in self.lost and not expected[part]) for part in counted}
        repeated = sorted(part for part, times in counted.items() if times > most[part])
        self.tell(f"{moment}: {len(found)} rows", f"LOST {lost} REPEATED {repeated}" if lost or repeated else "ok")
        if lost or repeated:
            self.problems.append(f"{moment}: lost {lost}, repeated {repeated}")


def main(old: str, new: str, folder: str, *rest: str) -> None:
    """Run stories, and write down how they end."""
    from stories import STORIES

    names, pairs = list(rest), ["old-new", "new-old", "old-old"]
    if "--pairs" in names:
        place = names.index("--pairs")
        pairs = names[place + 1].split(",")
        del names[place : place + 2]
    versions = {"old": Version(old), "new": Version(new)}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or list(STORIES):
        for pair in pairs:
            if pair not in STORIES[name].pairs:
                continue
            print(f"=== {name}, {pair}", flush=True)
            crossing = Crossing(versions, Path(folder) / f"{name}.{pair}", *pair.split("-"))
            try:
                STORIES[name].tell(crossing)
            except Exception as error:
                traceback.print_exc()
                crossing.problems.append(f"{type(error).__name__}: {error}")
            finally:
                crossing.stop()
            print(f"RESULT {name}, {pair}: {'; '.join(crossing.problems) or 'ok'}", flush=True)
            ended = {"name": name, "pair": pair, "problems": crossing.problems, "lines": crossing.lines}
            with (Path(folder) / "results.jsonl").open("a") as results:
                print(json.dumps(ended), file=results)
    for version in versions.values():
        version.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
