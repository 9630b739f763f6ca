"""The acceptance kit for destinations: what every type of sinks has to hold, as checks that a package can run.

    from strandline.testing import Subject, checks

A package describes its destination by a `Subject`, and runs every check that `checks(…)` lists on it. Each check makes
a lake of its own with a sink of the type, delivers rows to it, and does what a bad night does. docs/own-sinks.md shows
a test with it whole. No test runner is needed: a check that fails raises `Failed`, which is an AssertionError.
"""

from __future__ import annotations

from strandline.testing.checks import Check, checks
from strandline.testing.subject import COLUMNS, TABLE, Subject
from strandline.testing.trial import Failed

__all__ = ["COLUMNS", "TABLE", "Check", "Failed", "Subject", "checks"]
