"""Java's classes and collections, with few calls into the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

JavaObject: TypeAlias = Any
"""An object of the JVM: py4j looks each name up in Java as it is used, and no Python type says which there are."""


class JvmName:
    """A package, a class or the JVM itself. Every name on the way is a call, so each is asked for once."""

    def __init__(self, of: JavaObject) -> None:
        self._of = of

    def __getattr__(self, name: str) -> JavaObject:
        from py4j.java_gateway import JavaClass, JavaMember, JavaPackage

        member = getattr(self._of, name)
        if isinstance(member, JavaPackage | JavaClass):
            member = JvmName(member)
        if isinstance(member, JvmName | JavaMember):
            setattr(self, name, member)
        return member

    def __call__(self, *values: object) -> JavaObject:
        """A new object of the class, where it is one."""
        return self._of(*values)


@lru_cache(maxsize=4)
def java_of(jvm: JavaObject) -> JvmName:
    """The classes of a JVM."""
    return JvmName(jvm)


def each(things: JavaObject) -> Iterator[JavaObject]:
    """What a collection holds. A loop of Python's ends with an error of Java's, and PySpark explains it for 30 ms."""
    iterator = things.iterator()
    while iterator.hasNext():
        yield iterator.next()


def entries(of: JavaObject) -> Iterator[tuple[str, JavaObject]]:
    """The keys of a map, which are texts, with their values."""
    for key in each(of.keySet()):
        yield str(key), of.get(key)
