"""Entry point of `radix-runtime` and `python -m runtime`."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line."""
    # Torch's worker threads spin while they wait: beside any other busy process each step then stalls for a time slice.
    # Read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from runtime.cli import app

    app()


if __name__ == "__main__":
    main()
