"""A store and a Spark standalone cluster on this machine, for tests.

Owns their processes: a NameNode and a DataNode from Hadoop's jar, or an S3 endpoint (moto's server); a Master and
Workers from PySpark's jars. Must not know what runs on them. Invariants: workers share the store with the driver and
none of its directories, for each worker has a mount namespace of its own in which `hidden` is empty; all processes end
with the block.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import pyspark

from spark_audit.session import find_java
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import JVM_FLAGS, JavaProcess
from tests.spark_audit.pinned import fetch_jars, fetch_packages

if TYPE_CHECKING:
    from types import TracebackType

HADOOP = "hadoop-3.5.0"
S3_CLIENT = "hadoop-aws-3.5.0"
BUCKET = "audit"
STORES = ("hdfs", "s3")
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=anyone/20260101/us-east-1/s3/aws4_request, SignedHeaders=host,"
    " Signature=0"
)
"""Whose objects they are; moto asks for no more, HDFS for nothing."""
HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__path__[0])
PATIENCE_S = 240.0
WORKERS = 2
WORKER_MEMORY = "1g"
UNSHARE = ("unshare", "--mount", "--map-root-user")


class ClusterFailed(RuntimeError):
    """A process did not come up; the message holds the end of its log."""


def can_unshare() -> bool:
    """Whether this user may give a process mounts of its own."""
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find_scala() -> str:
    """The Scala of PySpark's jars: a worker asks for it, as the start scripts say it that the wheel lacks."""
    (core,) = (SPARK_HOME / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").split("-")[0]


def _ask(port: int, path: str) -> Any:
    """The JSON answer of a process of the cluster; None where none listens yet."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return json.load(answer)
    except (OSError, urllib.error.URLError):
        return None


def _request(url: str, method: str, content: bytes | None) -> Any:
    """FileNotFoundError: the store has no such file."""
    asked = urllib.request.Request(url, data=content, method=method)
    asked.add_header("Content-Type", "application/octet-stream")
    asked.add_header("Authorization", SIGNED)
    try:
        return urllib.request.urlopen(asked, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(url) from error
        raise


class Cluster:
    """Up while its block runs. `hidden`: a directory that no worker sees; `store`: one of STORES."""

    def __init__(self, directory: Path, hidden: Path, store: str) -> None:
        self._directory, self._hidden, self._store = directory, hidden, store
        self._stack = ExitStack()
        self._java = str(find_java().home / "bin" / "java")
        self._processes: list[JavaProcess] = []
        names = ("hdfs", "hdfs_http", "data", "data_http", "data_ipc", "s3", "spark", "spark_http")
        self._ports = {name: self._stack.enter_context(lease_port()).port for name in names}

    @property
    def root(self) -> str:
        """Where workers and driver may write."""
        return f"s3a://{BUCKET}" if self._store == "s3" else self._hdfs

    @property
    def _hdfs(self) -> str:
        return f"hdfs://{HOST}:{self._ports['hdfs']}"

    @property
    def settings(self) -> dict[str, str]:
        """What Spark needs to reach the store."""
        if self._store != "s3":
            return {}
        said = {
            "endpoint": f"http://{HOST}:{self._ports['s3']}",
            "endpoint.region": "us-east-1",
            "connection.ssl.enabled": "false",
            "path.style.access": "true",
            "access.key": "anyone",
            "secret.key": "nothing",
        }
        jars = sorted(str(path) for path in fetch_jars(S3_CLIENT).glob("*.jar"))
        return {f"spark.hadoop.fs.s3a.{key}": value for key, value in said.items()} | {
            "spark.jars": ",".join(jars)
        }

    def put(self, name: str, content: bytes) -> None:
        """A file of the store."""
        self._exchange(name, content)

    def read(self, name: str) -> bytes:
        """FileNotFoundError: there is none."""
        return self._exchange(name, None)

    def holds(self, folder: str) -> bool:
        """Whether anything is below the folder."""
        if self._store == "s3":
            query = f"list-type=2&prefix={quote(folder)}/"
            url = f"http://{HOST}:{self._ports['s3']}/{BUCKET}?{query}"
            with _request(url, "GET", None) as answer:
                return b"<Key>" in answer.read()
        url = f"http://{HOST}:{self._ports['hdfs_http']}/webhdfs/v1/{quote(folder)}?op=LISTSTATUS"
        try:
            with _request(url, "GET", None) as answer:
                return bool(json.load(answer)["FileStatuses"]["FileStatus"])
        except FileNotFoundError:
            return False

    def _exchange(self, name: str, content: bytes | None) -> bytes:
        """WebHDFS or S3, both of which are HTTP and ask this client for no name."""
        quoted, method = quote(name), "GET" if content is None else "PUT"
        url = f"http://{HOST}:{self._ports['s3']}/{BUCKET}/{quoted}"
        if self._store != "s3":
            operation = "OPEN" if content is None else "CREATE&overwrite=true"
            url = f"http://{HOST}:{self._ports['hdfs_http']}/webhdfs/v1/{quoted}?op={operation}"
            url += "&user.name=anyone&noredirect=true"
            with _request(url, "GET" if content is None else "PUT", None) as answer:
                url = json.load(answer)["Location"]
        with _request(url, method, content) as answer:
            found: bytes = answer.read()
            return found

    @property
    def master(self) -> str:
        """Spark's master."""
        return f"spark://{HOST}:{self._ports['spark']}"

    def list_applications(self) -> list[dict[str, Any]]:
        """What has run on the cluster, as the master tells it."""
        found: list[dict[str, Any]] = _ask(self._ports["spark_http"], "/json/")["completedapps"]
        return found

    def __enter__(self) -> Self:
        try:
            if self._store == "s3":
                self._start_s3()
            else:
                self._start_hdfs()
            self._start_spark()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.stop()
        self._stack.close()

    def _start_s3(self) -> None:
        port = str(self._ports["s3"])
        server = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", port]
        self._start("s3", ["env", f"PYTHONPATH={fetch_packages('moto')}", *server])

        def has_bucket() -> bool:
            with suppress(OSError), _request(f"http://{HOST}:{port}/{BUCKET}", "PUT", b""):
                return True
            return False

        self._wait(has_bucket)

    def _start_hdfs(self) -> None:
        jars = fetch_jars(HADOOP)
        settings = self._directory / "hadoop"
        settings.mkdir()
        values = {
            "fs.defaultFS": self._hdfs,
            "hadoop.tmp.dir": settings / "data",
            "dfs.replication": 1,
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.http-address": f"{HOST}:{self._ports['hdfs_http']}",
            "dfs.datanode.address": f"{HOST}:{self._ports['data']}",
            "dfs.datanode.http.address": f"{HOST}:{self._ports['data_http']}",
            "dfs.datanode.ipc.address": f"{HOST}:{self._ports['data_ipc']}",
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in values.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):  # of each, the defaults of its own precede
            (settings / name).write_text(f"<configuration>{properties}</configuration>")
        classes = f"{settings}:{jars}/*:{SPARK_HOME}/jars/*"
        package = "org.apache.hadoop.hdfs.server"
        command = [self._java, "-Xmx256m", *JVM_FLAGS, "-cp", classes]
        name_node = [*command, f"{package}.namenode.NameNode"]
        subprocess.run([*name_node, "-format", "-nonInteractive"], capture_output=True, check=True)
        self._start("namenode", name_node)
        self._start("datanode", [*command, f"{package}.datanode.DataNode"])

        def count_nodes() -> int:
            query = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
            said = _ask(self._ports["hdfs_http"], query)
            return said["beans"][0]["NumLiveDataNodes"] if said and said["beans"] else 0

        self._wait(lambda: count_nodes() == 1)

    def _start_spark(self) -> None:
        command = [self._java, "-Xmx256m", *JVM_FLAGS, "-cp", f"{SPARK_HOME}/jars/*"]
        package, port = "org.apache.spark.deploy", self._ports["spark"]
        listen = ["--host", HOST, "--port", str(port)]
        web = ["--webui-port", str(self._ports["spark_http"])]
        self._start("master", [*command, f"{package}.master.Master", *listen, *web])
        hide = [*UNSHARE, "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(self._hidden)]
        for number in range(WORKERS):
            work = self._directory / f"worker-{number}"
            size = ["--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(work)]
            worker = [f"{package}.worker.Worker", "--host", HOST, *size, self.master]
            self._start(f"worker-{number}", [*hide, *command, *worker])

        def count_workers() -> int:
            said = _ask(self._ports["spark_http"], "/json/")
            return said["aliveworkers"] if said else 0

        self._wait(lambda: count_workers() == WORKERS)

    def _start(self, name: str, command: list[str]) -> None:
        before = dict(os.environ)
        os.environ |= {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": find_scala(),
            "SPARK_LOCAL_IP": HOST,
        }
        try:
            self._processes.append(JavaProcess(command, self._directory / f"{name}.log"))
        finally:
            os.environ.clear()
            os.environ |= before

    def _wait(self, is_up: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_up():
            for process in self._processes:
                if not process.is_running or time.monotonic() > deadline:
                    raise ClusterFailed(f"{process.log_path.stem}: {process.log_tail()}")
            time.sleep(0.1)
