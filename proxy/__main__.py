"""`forebay`, also as `python -m proxy`. Owns what makes the start short, before anything is imported:

* no garbage is looked for while modules are imported: they stay, and the collector would visit them again and again,
  for a sixth of the start. `proxy.cli` turns it on for what runs long.
* pydantic looks for no plugins: it would read the metadata of every installed package.
"""

import gc
import importlib
import os


def main() -> int:
    """Run `forebay` with the arguments of the process. Returns the exit code."""
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    return int(importlib.import_module("proxy.cli").main())


if __name__ == "__main__":
    raise SystemExit(main())
