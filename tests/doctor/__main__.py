"""`python -m tests.doctor`: plants each damage into a lake of its own and prints what doctor says, before and after."""

from __future__ import annotations

import tempfile
from pathlib import Path

from strandline import create
from tests import conftest  # noqa: F401  the settings of a short Spark
from tests.doctor.damages import DAMAGES, scene
from tests.kit import call


def main() -> None:
    """Show all of them."""
    from strandline.engines.spark import session

    for number, damage in enumerate(DAMAGES, 1):
        with tempfile.TemporaryDirectory() as folder, create.create(Path(folder) / "lake") as lake:
            scene(lake, Path(folder))
            planted = damage.plant(lake)
            found = call("--lake", lake.root, "doctor")
            print(f"== {number}. {damage.name}: strand doctor (exit code {found.code})\n{found.out}")
            damage.repair(lake, planted)
            after = call("--lake", lake.root, "doctor")
            print(f"-- after the repair: strand doctor (exit code {after.code})\n{after.out}")
    session.stop()


if __name__ == "__main__":
    main()
