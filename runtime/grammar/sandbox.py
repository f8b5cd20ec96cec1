"""The process that compiles grammars of strangers: `python -m runtime.grammar.sandbox`, spoken to over its pipes.

A compiler can be made to run for hours, to fill the memory or to overflow its stack, and no thread can be interrupted
in it. A process can.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from typing import Any

from runtime.grammar.frames import DONE, READY, REFUSED, read_frame, write_frame
from runtime.grammar.spec import GrammarRefused, GrammarSpec
from runtime.grammar.trial import try_out
from runtime.grammar.xgrammar_library import XGrammarLibrary

_NICER = 10
# What the runtime reads, which takes it a few times as much memory while it does.
MAX_COMPILED_BYTES = 64 << 20


def main() -> None:
    source = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb")
    # What the library prints must not get between the messages.
    os.dup2(2, 1)
    os.nice(_NICER)
    head = read_frame(source)
    vocabulary = read_frame(source)
    if head is None or vocabulary is None:
        return
    settings: dict[str, Any] = json.loads(head)
    library = XGrammarLibrary.of_vocabulary(vocabulary)
    _limit_memory(settings["memory_bytes"])
    write_frame(out, READY)
    while (asked := read_frame(source)) is not None:
        job = json.loads(asked)
        # Nothing catches the signal: it ends the process, also in the middle of the library. What counts is the time of
        # the processor: how busy the machine is says nothing of a grammar.
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        answer = _answer(library, GrammarSpec(job["kind"], job["text"], plain=job["plain"]), settings["vocab_size"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(out, answer)


def _answer(library: XGrammarLibrary, spec: GrammarSpec, vocab_size: int) -> bytes:
    try:
        compiled = library.compile(spec)
        try_out(compiled, vocab_size)
        dumped = library.dump(compiled)
        if len(dumped) > MAX_COMPILED_BYTES:
            most = f"at most {MAX_COMPILED_BYTES >> 20} MiB is allowed"
            raise GrammarRefused(f"compiled it takes {len(dumped) >> 20} MiB to hand over; {most}")
        return DONE + dumped
    except GrammarRefused as error:
        return REFUSED + str(error).encode(errors="replace")
    except MemoryError:
        return REFUSED + b"compiling it takes more memory than is allowed"


def _limit_memory(more: int) -> None:
    """Allow `more` bytes of address space beyond what is in use."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
