"""Every warning and error that the proxy writes, read from its code.

Owns the finding and the wording of gaps: a value in a message is `…`. Must not know what is written about them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROXY = Path(__file__).parents[2] / "proxy"
LEVELS = ("warning", "error", "exception", "critical")
BUILT = ("closing a client ", "the broker tells clients of listener ")
"""Beginnings of texts that are built in one place and logged in another."""
GAP = "…"


def read_text(node: ast.expr) -> str | None:
    """A string with its gaps; None: it is none, or nothing but a gap."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else GAP
            for part in node.values
        )
    else:
        return None
    text = re.sub(r"%(?:\d*\.?\d*)[sdgxf]|%08x", GAP, text)
    return text if text.strip("…:. ") else None


def list_log_texts() -> set[str]:
    """Texts of log lines from `warning` up, those of BUILT included, and those that are a warning at times alone."""
    found = set()
    for path in PROXY.rglob("*.py"):
        if "canary" in path.parts or path.name == "docs.py":
            continue
        tree = ast.parse(path.read_text())
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            if id(node) in inner:
                continue
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr in LEVELS:
                    found.add(read_text(node.args[0]))
                elif node.func.attr == "log" and ast.unparse(node.func.value) == "log":
                    found.add(read_text(node.args[1]))
            elif isinstance(node, (ast.Constant, ast.JoinedStr)):
                text = read_text(node)
                if text is not None and text.startswith(BUILT):
                    found.add(text)
    return {one for one in found if one is not None}


def list_problem_texts() -> set[str]:
    """Texts of problems of a configuration whose keys contradict each other, from `check`."""
    found = set()
    for path in (PROXY / "config").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "_problem"
            ):
                found.add(read_text(node.args[0]))
    return {one for one in found if one is not None}
