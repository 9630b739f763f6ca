"""Java's classes, by name. Every name on the way to one is a call into the JVM, so each is asked for once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage


class Java:
    """A package, a class or the JVM itself; what is found in it by name stays what it is."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if isinstance(found, JavaPackage | JavaClass):
            found = Java(found)
        if isinstance(found, Java | JavaMember):
            setattr(self, name, found)
        return found

    def __call__(self, *values: Any) -> Any:
        """A new object of the class, where it is one."""
        return self._of(*values)


@lru_cache(maxsize=4)
def java_of(jvm: Any) -> Java:
    """The classes of a JVM."""
    return Java(jvm)
