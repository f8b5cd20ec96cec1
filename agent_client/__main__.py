"""Entry point of `agent-client` and `python -m agent_client`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from .cli import app

    app()


if __name__ == "__main__":
    main()
