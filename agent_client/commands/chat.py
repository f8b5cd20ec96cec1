"""`agent-client chat`: a conversation that the runtime keeps as a session."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ..access import Access
from ..client import RadixClient, Session
from ..errors import RadixloopError
from ..generate_options import GenerateOptions
from ..prompts import Chat
from ..words import usage_line
from .failures import reported, say
from .generate import print_stream

_HELP = "/new starts over, /tokens shows the session's length, /quit (or Ctrl-D) ends it; Ctrl-C stops a reply"


@reported
def run(
    target: str, system: str | None, salt: str | None, options: GenerateOptions, access: Access | None = None
) -> int:
    if sys.stdin.isatty():
        # Line editing and history for input().
        import readline  # noqa: F401
    console = Console(stderr=True, highlight=False)
    head = [] if system is None else [{"role": "system", "content": system}]
    with RadixClient(target, salt=salt, access=access) as client:
        console.print(Text(f"{client.model_info().model} at {client.target}. {_HELP}.", style="dim"))
        while True:
            with client.session() as session:
                if not _converse(console, session, head, options):
                    return 0


def _converse(console: Console, session: Session, head: list[dict[str, Any]], options: GenerateOptions) -> bool:
    """Turns of one session; True when the user asks for a new one."""
    new = list(head)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return False
        if line in ("/quit", "/exit"):
            return False
        if line == "/new":
            return True
        if line == "/tokens":
            console.print(f"{session.tokens:,} tokens")
        elif line.startswith("/"):
            console.print(_HELP)
        # A turn that did not finish left nothing behind: what it sent, but for its question, is still to be sent.
        elif line and _turn(console, session, Chat([*new, {"role": "user", "content": line}]), options):
            new = []


def _turn(console: Console, session: Session, chat: Chat, options: GenerateOptions) -> bool:
    """Prints one reply; False when it was stopped or failed."""
    try:
        with session.stream(chat, **options) as stream:
            print_stream(stream)
            console.print(Text(usage_line(stream.result()), style="dim"))
            return True
    except KeyboardInterrupt:
        console.print(Text("\nstopped", style="dim"))
    except RadixloopError as error:
        say(str(error))
    return False
