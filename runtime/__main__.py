"""Entry point of `radix-runtime` and `python -m runtime`."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line."""
    # Torch's worker threads spin while they wait, by default for milliseconds: beside any other busy process each step
    # then stalls for a time slice. Not at all, and each of the hundreds of parallel regions of a step pays for waking
    # them up. So long as one region is from the next, and no longer. Read once, when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from runtime.cli import app

    app()


if __name__ == "__main__":
    main()
