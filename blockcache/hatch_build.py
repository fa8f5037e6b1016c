"""Hatchling's build hook: puts the extensions into the wheel; an editable install builds them in place.

Must not know how they are compiled (`_build.py`). It is loaded by path, before the package can be imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


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
