"""`python -m proxy` runs `forebay`. Owns nothing."""

from proxy.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
