"""How a command tells a person what went wrong."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

from ..errors import RadixloopError, Unavailable
from ..traces import TraceError

P = ParamSpec("P")

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def say(message: str) -> None:
    """One line on standard error."""
    print(f"agent-client: {message}", file=sys.stderr)


def reported(run: Callable[P, int]) -> Callable[P, int]:
    """Turns the errors that a user can act on into a line and an exit code."""

    @functools.wraps(run)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return run(*args, **kwargs)
        except TraceError as error:
            say(str(error))
            return USAGE
        except RadixloopError as error:
            say(str(error))
            # Of all servers, only a runtime of ours raises this very class.
            if type(error) is Unavailable:
                say("start a runtime with `radix-runtime serve`, or name another one with --target HOST:PORT")
            return FAILED
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            # Whoever read the output has seen enough; nothing more may be flushed to it at exit.
            sys.stdout = None
            return FAILED

    return wrapped
