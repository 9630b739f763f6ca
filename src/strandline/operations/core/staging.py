"""The folders that operations work in: one each, in the warehouse, where executors can reach them too.

Whatever is in one is garbage as soon as its intent is gone, so nothing here is ever the only copy of a row.
"""

from __future__ import annotations

from pathlib import Path

from strandline import private
from strandline.engines.storage import S3, open_uri, remove_folder

FOLDER = "_staging"


class Staging:
    """The working folders of a lake."""

    def __init__(self, warehouse: str) -> None:
        self.warehouse = warehouse
        self._base = f"{warehouse.rstrip('/')}/{FOLDER}"

    def uri(self, owner_id: str, name: str = "") -> str:
        """Where an operation or a load keeps a file."""
        return f"{self._base}/{owner_id}/{name}" if name else f"{self._base}/{owner_id}"

    def create(self, owner_id: str) -> None:
        """Make the folder."""
        uri = self.uri(owner_id)
        system, path = open_uri(uri)
        if uri.startswith(S3):
            system.create_dir(path, recursive=True)
        else:
            private.make_folder(Path(path))

    def remove(self, owner_id: str) -> None:
        """Remove the folder and all that is in it; it may be gone already."""
        remove_folder(*open_uri(self.uri(owner_id)))

    def listing(self) -> list[str]:
        """Whose folders there are."""
        from pyarrow.fs import FileSelector

        system, path = open_uri(self._base)
        return sorted(info.base_name for info in system.get_file_info(FileSelector(path, allow_not_found=True)))
