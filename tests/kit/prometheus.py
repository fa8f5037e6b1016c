"""Prometheus: Debian's package, unpacked once into the user's cache, and a server of it.

Owns the cache directory (forebay/prometheus under $XDG_CACHE_HOME or ~/.cache), the server's process and its HTTP
interface. Must not know rules or dashboards. Invariants: nothing is installed; apt checks the package's signature; a
program of the machine wins over one of the cache.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

PACKAGE = "prometheus"
FETCH_TIMEOUT_S = 600.0
START_TIMEOUT_S = 120.0


class FetchFailed(RuntimeError):
    """The package could not be had; the message says from what."""


def find_cache() -> Path:
    """Where the package is unpacked."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "forebay" / "prometheus"


def find_program(name: str) -> str | None:
    """The path of `prometheus` or `promtool`: of the machine, else of the cache; None: neither has it."""
    cached = find_cache() / "usr" / "bin" / name
    return shutil.which(name) or (str(cached) if cached.is_file() else None)


def fetch() -> Path:
    """Unpack the package into the cache unless it is there. Returns the directory. Raises FetchFailed."""
    cache = find_cache()
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if cache.is_dir():
            return cache
        with tempfile.TemporaryDirectory(dir=cache.parent) as staging:
            unpacked = Path(staging) / "root"
            run(["apt-get", "download", PACKAGE], staging)
            (package,) = Path(staging).glob("*.deb")
            run(["dpkg", "-x", str(package), str(unpacked)], staging)
            unpacked.rename(cache)
    return cache


def run(command: list[str], directory: str) -> None:
    """Run a step of the fetching. Raises FetchFailed."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise FetchFailed(f"{command[0]}: {error}; install Debian's package prometheus") from error
    if done.returncode:
        raise FetchFailed(f"{' '.join(command)}: {done.stderr.strip()}")


class PrometheusServer:
    """A running server over a configuration file; a context manager. `address`: HOST:PORT of its interface."""

    def __init__(self, configuration: Path, data: Path, port: int) -> None:
        """Start it. Raises FetchFailed if there is no program, TimeoutError if it does not become ready."""
        program = find_program("prometheus")
        if program is None:
            program = str(fetch() / "usr" / "bin" / "prometheus")
        self.address = f"127.0.0.1:{port}"
        self._log = (data.parent / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={configuration}",
                f"--storage.tsdb.path={data}",
                f"--web.listen-address={self.address}",
                "--web.enable-lifecycle",
                "--log.level=warn",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                text = (data.parent / "prometheus.log").read_text()
                raise TimeoutError(f"Prometheus does not start: {text[-2000:]}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        url = f"http://{self.address}/-/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def ask(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of the HTTP interface (/api/v1/PATH). ValueError: it is an error."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/{path}?{query}", timeout=60
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{path} {parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of an instant query, now."""
        found = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels, and pairs of Unix time and value, of each series of a range query."""
        times = {"start": str(start_s), "end": str(end_s), "step": str(step_s)}
        found = self.ask("query_range", query=expression, **times)["result"]
        return [
            (one["metric"], [(float(at), float(value)) for at, value in one["values"]])
            for one in found
        ]

    def list_firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts = self.ask("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def list_alerts(self) -> list[dict[str, Any]]:
        """All alerts as the interface has them: labels, annotations, state."""
        found: list[dict[str, Any]] = self.ask("alerts")["alerts"]
        return found

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> "PrometheusServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    print(fetch())
