"""A real REST catalog server for tests: Iceberg's own servlet before a JDBC catalog, in a JVM of its own.

The jar is the one that Iceberg publishes for checking REST clients. It is fetched once, compared with a known digest,
and kept in the user's cache folder. Its main class would listen on every address of the machine, so we put its parts
together ourselves, on the loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strandline.engines.spark import jars, java
from strandline.errors import Environment

SERVER = jars.Jar(
    organisation="org.apache.iceberg",
    name="iceberg-open-api",
    revision="1.10.0",
    sha256="99379edef1a65b51c40a63971ffab46d38966821af26ef6224bd217eeacae8d7",
    size_bytes=211869107,
)
JVM = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """A server whose catalog and tables are below a folder; its address."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    try:
        (server,) = jars.keep([SERVER], jars.cache_dir() / "tools")
    except Environment as error:
        pytest.skip(f"there is no REST catalog to test with: {error.message}")
    runtime = java.find()
    py4j = next(jars._ivy_jar().parent.glob("py4j-*.jar"))
    port, secret, process = launch_gateway(
        classpath=str(server),
        jarpath=str(py4j),
        javaopts=JVM,
        java_path=str(runtime.home / "bin" / "java"),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True))
    try:
        yield f"http://127.0.0.1:{_serve(gateway.jvm, folder)}"
    finally:
        gateway.close()
        process.kill()
        process.wait(timeout=30)


def _serve(jvm: Any, folder: Path) -> int:
    properties = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder}/rest.db?busy_timeout=30000",
        "warehouse": f"file://{folder}/rest",
        "jdbc.schema-version": "V1",
    }
    catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        "backend", properties, jvm.org.apache.hadoop.conf.Configuration()
    )
    servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog))
    context = jvm.org.eclipse.jetty.servlet.ServletContextHandler()
    context.addServlet(jvm.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
    server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(context)
    server.start()
    return int(server.getURI().getPort())
