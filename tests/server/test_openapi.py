"""The stored description of the API is the one that the server gives.

Whoever writes a client reads `docs/openapi.json`, and a change of it is a change for them: it has to be seen in a diff.
`python -m tests.server.test_openapi` writes it anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from strandline import create
from strandline.lake import Lake
from strandline.server.app import create_app

STORED = Path(__file__).parents[2] / "docs" / "openapi.json"


def described(lake: Lake) -> str:
    """The document as the server of a lake would give it."""
    app = create_app(lake)
    try:
        return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    finally:
        app.state.service.close()


def test_the_stored_description_is_the_servers(lake: Lake) -> None:
    """If this fails on purpose, write it anew, and say in CHANGELOG.md what has changed for those who call us."""
    assert STORED.read_text(encoding="utf-8") == described(lake), "type: python -m tests.server.test_openapi"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, create.create(Path(folder) / "lake") as made:
        STORED.write_text(described(made), encoding="utf-8")
