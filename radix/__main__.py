"""The command `radix`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; errors of ours become one line on stderr and exit status 1."""
    from radix.cli import app
    from radix.errors import RadixError

    try:
        app()
    except RadixError as error:
        sys.exit(f"radix: {error}")
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        sys.exit(f"radix: this command needs {_EXTRA[missing.name]}: pip install 'radixloop[radix]'")


_EXTRA: dict[str | None, str] = {"numpy": "NumPy", "redis": "redis-py"}

if __name__ == "__main__":
    main()
