"""A headless Chromium that opens one file, or a page of a server on this machine: what it draws, what it prints, and
what a script measures in it.

Owns the process and its flags. Must not know the page. Invariants: no host name resolves, so that a page which loads
something shows it as missing; each run has a profile of its own, removed afterwards; a run that does not end is killed.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING: Final = "no Chromium on PATH: apt install chromium draws the page in a browser"
_TIMEOUT_S: Final = 120
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-pdf-header-footer",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*",
)
_POLICY: Final = "script-src '"
_RESULT: Final = re.compile(r'<pre id="measured">(.*?)</pre>', re.DOTALL)


def find_chromium() -> str | None:
    """The path of the first Chromium on PATH; None: there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def screenshot(
    page: Path, picture: Path, width: int = 1100, height: int = 3000, is_dark: bool = False
) -> Path:
    """Draw the page's first `height` pixels as a PNG."""
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    _run(page, f"--window-size={width},{height}", f"--screenshot={picture}", scheme)
    return picture


def open_address(address: str, *flags: str, wait_ms: int = 10_000) -> str:
    """The document after a page from a server has run for `wait_ms`, in which pauses of its script take no time."""
    return _run_at(address, *flags, f"--virtual-time-budget={wait_ms}", "--dump-dom")


def screenshot_address(address: str, picture: Path, width: int, height: int) -> Path:
    """Draw the first `height` pixels of a page from a server, after it has run for a while."""
    flags = f"--window-size={width},{height}", f"--screenshot={picture}"
    _run_at(
        address, *flags, "--virtual-time-budget=10000", "--blink-settings=preferredColorScheme=1"
    )
    return picture


def print_pdf(page: Path, paper: Path) -> Path:
    """Print the page."""
    _run(page, f"--print-to-pdf={paper}")
    return paper


def measure(page: Path, script: str, width: int = 1100) -> Any:
    """The value of a script's last expression, a function's body without arguments, after the page's own script. The
    copy that is opened allows this script besides what the page allows.
    """
    code = (
        f"const measured = (() => {{{script}}})();"
        "const result = document.createElement('pre');"
        "result.id = 'measured'; result.textContent = JSON.stringify(measured); document.body.append(result);"
    )
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    text = page.read_text(encoding="utf-8")
    assert text.count(_POLICY) == 1, "the page has no content security policy"
    text = text.replace(_POLICY, f"script-src 'sha256-{digest}' '")
    copy = page.with_name(f"measured-{page.name}")
    copy.write_text(text.replace("</body>", f"<script>{code}</script></body>"), encoding="utf-8")
    found = _RESULT.search(_run(copy, f"--window-size={width},1000", "--dump-dom"))
    assert found, "the script failed"
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def _run(page: Path, *flags: str) -> str:
    return _run_at(page.as_uri(), *flags)


def _run_at(address: str, *flags: str) -> str:
    chromium = find_chromium()
    assert chromium, MISSING
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium, *_FLAGS, f"--user-data-dir={profile}", *flags, address]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout
