"""The lake's Spark: started by the first call that needs it, shared by copies of the lake, begun anew when it died."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from strandline import private

if TYPE_CHECKING:
    from strandline.config import LakeConfig
    from strandline.engines.spark.iceberg import Iceberg
    from strandline.ledger.ledger import Ledger
    from strandline.operations.core.context import Report
    from strandline.operations.core.fence import Fence


class SparkEngine:
    """A JVM with the catalog of one lake, or none yet."""

    def __init__(self, config: LakeConfig, ledger: Ledger, report: Report | None) -> None:
        self._config = config
        self._ledger = ledger
        self._report = report
        self._lock = threading.Lock()
        self._iceberg: Iceberg | None = None

    def iceberg(self, fence: Fence, report: Report | None) -> Iceberg:
        """The lake's Iceberg tables; starts Spark when it is not running, and says so to the caller's report too."""
        with self._lock:
            if self._iceberg is None:
                for tell in dict.fromkeys((report, self._report)):
                    if tell is not None:
                        tell("starting Spark", 0, None)
                fence.raise_()
                self._iceberg = self._start()
            return self._iceberg

    def _start(self) -> Iceberg:
        from strandline.engines.spark.iceberg import Iceberg
        from strandline.engines.spark.session import catalog_properties, lake_session, start

        config = self._config
        if config.catalog_path is not None:
            private.create_file(config.catalog_path)
        root = start(config.spark.master, config.spark.conf)
        login = self._ledger.database.login()
        catalog = catalog_properties(config.catalog_uri, config.warehouse, login, config.store)
        return Iceberg(lake_session(root, catalog, store=config.store), catalog)

    @property
    def is_up(self) -> bool:
        """Whether this lake has a Spark, and its JVM lives."""
        from strandline.engines.spark import session

        return self._iceberg is not None and session.lives()

    def drop_dead(self) -> bool:
        """Forget a Spark whose JVM has died, so that the next call starts another; True if there was one."""
        from strandline.engines.spark import session

        with self._lock:
            if self._iceberg is None or session.lives():
                return False
            self._iceberg = None
            session.forget_dead()
            return True

    def close(self) -> None:
        """Close the lake's session; Spark goes on for the process's other lakes."""
        with self._lock:
            iceberg, self._iceberg = self._iceberg, None
        if iceberg is not None:
            with suppress(Exception):  # Spark may be gone already, and with it what it held
                iceberg.close()
