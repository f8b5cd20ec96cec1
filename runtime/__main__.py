"""Entry point of `radix-runtime` and `python -m runtime`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from runtime.cli import app

    app()


if __name__ == "__main__":
    main()
