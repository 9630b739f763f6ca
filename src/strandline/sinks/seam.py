"""Where the code of a sink's type is called: what it raises is its destination's error, and never the process's end.

A package may raise anything, also what no `except Exception` catches: `sys.exit()`, or a class of an extension. And
what it says may repeat a secret. So all of its code is called through here, and leaves by one of our words, by an
exception of the three that steer a tick, or as a `SinkFault` whose text is redacted. Only what ends this process on
purpose passes: an interrupt, a generator's close, and the exceptions of ours that are no `Exception`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strandline.errors import SinkFault, StrandError
from strandline.outages import judge
from strandline.redaction import redacted

if TYPE_CHECKING:
    from strandline.model.delivery.sinks import Shipped, Standing, Stream
    from strandline.sinks.destination import Destination, Unit

MEND = "The package that brings the type has to be mended, or another version of it installed."
NEEDED = ("probe", "look", "standing", "ship", "close")
MORE = ("has_lost", "highest_epoch", "replay", "replayed")
"""What some destinations can do beside that."""


def words_of(error: BaseException) -> str:
    """An error's text as it may be stored and shown; its class where it has none."""
    try:
        text = str(error)
    except Exception:  # a class of a package
        text = ""
    return redacted(text or type(error).__name__)


def fault(what: str, error: BaseException, hint: str = MEND) -> SinkFault:
    """The error for what a package's code has raised."""
    name, text = type(error).__name__, words_of(error)
    return SinkFault(f"{what}: {name}: {text}" if text != name else f"{what}: {name}", hint=hint)


@contextmanager
def code_of(
    what: str, *passing: type[Exception], is_ours: bool = False, outages_pass: bool = False, hint: str = MEND
) -> Iterator[None]:
    """Code that a type brings runs here. `passing` is what it may raise; what else one of ours raises is a bug of ours.

    What is known for an outage may pass as it is: it is told as one, wherever it was met.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit, StrandError):
        raise
    except Exception as error:
        if is_ours or isinstance(error, passing) or (outages_pass and judge(error) is not None):
            raise
        raise fault(what, error, hint) from error
    except BaseException as error:
        if type(error).__module__.partition(".")[0] == "strandline":
            raise
        raise fault(what, error, hint) from error


class Called:
    """A destination, whose code is called through the seam; beside what all can do, it can do what that one can."""

    def __init__(self, place: Destination, sink: str, *passing: type[Exception], is_ours: bool) -> None:
        self._place = place
        self._sink = sink
        self._passing = passing
        self._is_ours = is_ours
        self._calls: dict[str, Callable[..., Any]] = {}
        for name in (*NEEDED, *MORE):
            with self._code(name):
                method = getattr(place, name, None)
            if callable(method):
                self._calls[name] = method
            elif name in NEEDED:
                raise SinkFault(f"the destination of sink {sink!r} has no method {name}()", hint=MEND)
        for name in MORE:  # a protocol's methods are looked for on the object itself
            if name in self._calls:
                setattr(self, name, self._through(name))

    def __getattr__(self, name: str) -> Any:
        if name == "_place":
            raise AttributeError(name)
        return getattr(self._place, name)

    def probe(self) -> None:
        """As the destination does."""
        self._through("probe")()

    def look(self) -> None:
        """As the destination does."""
        self._through("look")()

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        """As the destination says."""
        standing: Standing = self._through("standing")(stream, table, partition_by)
        return standing

    def ship(self, unit: Unit) -> Shipped:
        """As the destination does."""
        shipped: Shipped = self._through("ship")(unit)
        return shipped

    def close(self) -> None:
        """As the destination does."""
        self._through("close")()

    def _code(self, name: str) -> Any:
        what = f"the destination of sink {self._sink!r} failed in {name}()"
        return code_of(what, *self._passing, is_ours=self._is_ours, outages_pass=True)

    def _through(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self._code(name):
                return self._calls[name](*arguments)

        return call


def itself(place: Destination) -> object:
    """The package's own object, and not what its code is called through."""
    return place._place if isinstance(place, Called) else place
