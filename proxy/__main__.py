"""`forebay`, also as `python -m proxy`. Owns that no garbage is looked for while modules are imported: they stay, and
the collector would visit them again and again, for a sixth of the start. `proxy.cli` turns it on for what runs long.
"""

import gc
import importlib


def main() -> int:
    """Run `forebay` with the arguments of the process. Returns the exit code."""
    gc.disable()
    return int(importlib.import_module("proxy.cli").main())


if __name__ == "__main__":
    raise SystemExit(main())
