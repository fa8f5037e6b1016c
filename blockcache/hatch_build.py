"""Hatchling's hooks: the extensions and the commit in the wheel, README.md with links that work away from the tree.

Must not know how they are compiled (`_build.py`). It is loaded by path, before the package can be imported.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Gives the package README.md as its description."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`. The package index shows it where no file of the tree is: links become those of the source."""
        text = (Path(self.root) / "README.md").read_text()
        source = metadata["urls"]["Source"]
        absolute = RELATIVE_LINK.sub(rf"]({source}/blob/main/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}


class ExtensionBuildHook(BuildHookInterface[Any]):
    """Compiles the C extensions before a wheel, plain or editable, is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "standard" or "editable"; the wheel is tagged for this interpreter and platform."""
        if self.target_name != "wheel":
            return
        source = Path(self.root) / "blockcache" / "_build.py"
        spec = importlib.util.spec_from_file_location("forebay_build", source)
        assert spec is not None and spec.loader is not None
        builder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(builder)
        built: list[Path] = builder.build()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            for path in built:
                build_data["force_include"][str(path)] = path.relative_to(self.root).as_posix()
            self._scratch = tempfile.TemporaryDirectory(prefix="forebay-build-")
            commit = Path(self._scratch.name) / "commit.txt"
            commit.write_text(find_commit(Path(self.root)))
            build_data["force_include"][str(commit)] = "proxy/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written: remove what was only for it."""
        if self.target_name == "wheel" and version != "editable":
            self._scratch.cleanup()


def find_commit(root: Path) -> str:
    """The commit of the sources: SOURCE_COMMIT of the environment, which builds outside of a clone set; else that of
    the clone at `root`; else "". Followed by "-dirty" if a file of the clone was changed.
    """
    if given := os.environ.get("SOURCE_COMMIT", ""):
        return given
    if not (root / ".git").exists():
        return ""
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
