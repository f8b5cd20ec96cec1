"""Compiling grammars: kept by what they are made of, apart from everybody, within bounds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import wait
from threading import Event

import pytest

from runtime.errors import ShuttingDown
from runtime.grammar import (
    CompilerBusy,
    GrammarBooks,
    GrammarCompiler,
    GrammarRefused,
    GrammarSpec,
    compile_process,
    compiler,
    sandbox,
)
from runtime.grammar.compile_process import CompileProcess
from runtime.grammar.compiler import WORKERS, WORKERS_EACH
from runtime.grammar.frames import DONE, REFUSED
from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.trial import try_out
from tests.runtime.grammar.stuck import StuckGrammar
from tests.runtime.grammar.walks import byte_library
from tests.timing import eventually

SECONDS = 1.5
# Each of its rules is tried at every place of every other.
SLOW = "root ::= r0\n" + "\n".join(f'r{n} ::= r{n + 1} r{n + 1} | "a"' for n in range(8000)) + '\nr8000 ::= "b"'


@pytest.fixture
def books() -> GrammarBooks:
    return GrammarBooks()


@pytest.fixture
def compile_service(books: GrammarBooks) -> Iterator[GrammarCompiler]:
    library, pieces = byte_library()
    made = GrammarCompiler(library, len(pieces), seconds=SECONDS, books=books)
    yield made
    made.close()


def accepts(grammar: CompiledGrammar, text: bytes) -> bool:
    _, pieces = byte_library()
    matcher = grammar.matcher()
    return all(matcher.accept(pieces.index(bytes([byte]))) for byte in text) and matcher.complete


def regex(text: str, **marks: bool) -> GrammarSpec:
    return GrammarSpec("regex", text, **marks)


def test_a_grammar_is_compiled_once(compile_service: GrammarCompiler, books: GrammarBooks) -> None:
    first = compile_service.compiled(regex("ab*", trusted=True)).result()
    assert compile_service.compiled(regex("ab*", trusted=True)).result() is first
    assert compile_service.compiled(regex("ab+", trusted=True)).result() is not first
    assert (books.lookups, books.hits, books.refused, books.cached) == (3, 1, 0, 2)
    assert books.cached_bytes >= first.size_bytes > 0


def test_those_who_ask_at_once_share_one_compilation(
    compile_service: GrammarCompiler, books: GrammarBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_up(compile_service, monkeypatch)
    asked = [compile_service.compiled(regex("a{3,40}", trusted=True)) for _ in range(5)]
    go.set()
    assert len({id(future.result(60)) for future in asked}) == 1
    assert books.compile.read()[0][-1] == ("+Inf", 1)


def test_only_so_many_strangers_may_wait_and_the_runtimes_own_do_not_wait_for_them(
    compile_service: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_up_strangers(compile_service, monkeypatch)
    monkeypatch.setattr(compile_service._queue, "limit", 3)
    waiting = [compile_service.compiled(regex("a" * count)) for count in (1, 2, 3)]
    with pytest.raises(CompilerBusy, match="3 grammars wait"):
        compile_service.compiled(regex("aaaa"))
    assert accepts(compile_service.compiled(regex("own", trusted=True)).result(60), b"own")
    # One for which nobody waits any more leaves its place, unless it has begun; others may wait for it too.
    again = compile_service.compiled(regex("aaa"))
    compile_service.leave(regex("aaa"), again)
    assert not again.cancelled()
    for count, future in enumerate(waiting, 1):
        compile_service.leave(regex("a" * count), future)
    assert [future.cancelled() for future in waiting] == [False, False, True]
    waiting[2] = compile_service.compiled(regex("aaaa"))
    go.set()
    wait(waiting, 60)
    compile_service.compiled(regex("aaaa")).result(60)


def test_one_callers_grammars_hold_up_nobody_elses(
    compile_service: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_up_strangers(compile_service, monkeypatch, "slow")
    monkeypatch.setattr(compile_service._queue, "limit", 6)
    slow = [compile_service.compiled(regex(f"slow{count}"), "one") for count in range(6)]
    # Room is made by whoever has most waiting, and a process is free.
    assert accepts(compile_service.compiled(regex("quick"), "another").result(60), b"quick")
    with pytest.raises(CompilerBusy, match="6 grammars wait"):
        slow[5].result(60)
    # What another asks for too takes that one's turn, behind whatever the first has waiting.
    assert not any(future.done() for future in slow[:5])
    shared = compile_service.compiled(regex("common"), "one")
    assert compile_service.compiled(regex("common"), "another") is shared
    assert accepts(shared.result(60), b"common")
    assert not any(future.done() for future in slow[:5])
    go.set()
    for count, future in enumerate(slow[:5]):
        assert accepts(future.result(60), f"slow{count}".encode())
    assert compile_service._at_work <= WORKERS
    assert len(compile_service._queue) == 0


def test_who_asks_for_what_waits_for_anothers_turn_has_a_process_that_idles(
    compile_service: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_up_strangers(compile_service, monkeypatch, "slow")
    slow = [compile_service.compiled(regex(f"slow{count}"), "one") for count in range(WORKERS_EACH)]
    shared = compile_service.compiled(regex("common"), "one")
    # The third has looked, and found nothing that it may begin.
    assert eventually(lambda: compile_service._at_work == WORKERS_EACH)
    assert compile_service.compiled(regex("common"), "another") is shared
    # Before the others give up waiting.
    assert accepts(shared.result(30), b"common")
    go.set()
    wait(slow, 60)


def hold_up_strangers(service: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, which: str = "") -> Event:
    """Let the compilations of texts that begin with `which` wait for an event; no process is started."""
    go, library = Event(), service.library

    def slowly(process: CompileProcess, spec: GrammarSpec) -> bytes:
        if spec.text.startswith(which):
            assert go.wait(60)
        return library.dump(library.compile(spec))

    monkeypatch.setattr(CompileProcess, "compile", slowly)
    return go


def hold_up(service: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> Event:
    """Let the compilations in this process wait for an event."""
    go, compile_ = Event(), service.library.compile

    def slowly(spec: GrammarSpec) -> CompiledGrammar:
        assert go.wait(60)
        return compile_(spec)

    monkeypatch.setattr(service.library, "compile", slowly)
    return go


def test_what_was_used_last_stays(
    compile_service: GrammarCompiler, books: GrammarBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "MAX_CACHED", 2)
    one, two = regex("a", trusted=True), regex("b", trusted=True)
    kept = compile_service.compiled(one).result()
    compile_service.compiled(two).result()
    compile_service.compiled(one).result()
    compile_service.compiled(regex("c", trusted=True)).result()
    assert compile_service.compiled(one).result() is kept
    hits = books.hits
    compile_service.compiled(two).result()
    assert books.hits == hits
    assert books.cached == 2
    monkeypatch.setattr(compiler, "MAX_CACHED_BYTES", 0)
    compile_service.compiled(regex("d", trusted=True)).result()
    assert (books.cached, books.cached_bytes) == (0, 0)


def test_no_grammar_is_refused_in_the_librarys_words_and_remembered(
    compile_service: GrammarCompiler, books: GrammarBooks
) -> None:
    for _ in range(2):
        with pytest.raises(GrammarRefused, match="parenthesis is not closed"):
            compile_service.compiled(regex("(", trusted=True)).result()
    assert (books.refused, books.hits, books.cached) == (1, 1, 0)


@pytest.mark.slow
def test_strangers_grammars_are_compiled_apart_within_bounds(
    compile_service: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The processor's time is what is bounded here; others may hold the processor meanwhile.
    monkeypatch.setattr(compile_process, "PATIENCE", 40)
    specs = (
        regex("a(b|c)+"),
        GrammarSpec("ebnf", 'root ::= "x" root | "y"'),
        GrammarSpec("json_schema", '{"type": "object"}', plain=True),
    )
    for spec in specs:
        apart, here = compile_service.compiled(spec).result(60), compile_service.library.compile(spec)
        for text in (b"abcb", b"a", b"xxy", b'{"a": [1]}', b"{"):
            assert accepts(apart, text) == accepts(here, text)
    hostile = {
        "no token may come next": GrammarSpec("ebnf", "root ::= root"),
        "Nest layer": regex("(" * 7000 + "a" + ")" * 7000),
        r"more than 1\.5 s or 1024 MiB": GrammarSpec("ebnf", SLOW),
    }
    for says, spec in hostile.items():
        with pytest.raises(GrammarRefused, match=says):
            compile_service.compiled(spec).result(60)
    # The last one took the process with it, and the next grammar gets another.
    assert accepts(compile_service.compiled(regex("ab*")).result(60), b"abb")
    starts = [process.starts for process in compile_service._processes]
    assert max(starts) >= 2


@pytest.mark.slow
def test_what_happens_to_a_process_says_nothing_of_its_grammar(
    compile_service: GrammarCompiler, books: GrammarBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, deaths = compile_process._exchange, 0

    def dying(process: subprocess.Popen[bytes], messages: list[bytes], seconds: float) -> bytes | None:
        nonlocal deaths
        if len(messages) == 1 and deaths:
            deaths -= 1
            process.kill()
        return exchange(process, messages, seconds)

    monkeypatch.setattr(compile_process, "_exchange", dying)
    deaths = 1
    assert accepts(compile_service.compiled(regex("killed (once)?")).result(60), b"killed once")
    [running] = [process._process for process in compile_service._processes if process._process]
    # Ctrl-C in the runtime's terminal does not reach it.
    assert os.getpgid(running.pid) != os.getpgid(0)
    deaths = 2
    with pytest.raises(CompilerBusy, match="was ended; try again"):
        compile_service.compiled(regex("killed twice")).result(60)
    # A machine whose processor others have.
    monkeypatch.setattr(compile_process, "PATIENCE", 0.0)
    with pytest.raises(CompilerBusy, match="the machine is busy"):
        compile_service.compiled(GrammarSpec("ebnf", SLOW)).result(60)
    assert books.refused == 0
    assert regex("killed twice").digest not in compile_service._kept


@pytest.mark.slow
def test_the_end_of_the_runtime_refuses_no_grammar(compile_service: GrammarCompiler, books: GrammarBooks) -> None:
    compiling = [compile_service.compiled(GrammarSpec("ebnf", SLOW + " " * count)) for count in range(3)]
    assert eventually(lambda: sum(process.starts for process in compile_service._processes) == WORKERS_EACH)
    compile_service.close()
    for future in compiling[:2]:
        with pytest.raises(ShuttingDown):
            future.result(60)
    assert compiling[2].cancelled()
    with pytest.raises(ShuttingDown):
        compile_service.compiled(regex("late"))
    assert books.refused == 0


def test_a_grammar_whose_masks_are_slow_is_refused_before_it_is_used() -> None:
    with pytest.raises(GrammarRefused, match=r"takes \d+ ms; at most 30 ms is allowed"):
        try_out(StuckGrammar(0.05), 100)
    try_out(StuckGrammar(0.0), 100)


def test_a_grammar_that_is_huge_when_compiled_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    library, pieces = byte_library()
    assert sandbox._answer(library, regex("a{3}"), len(pieces))[:1] == DONE
    monkeypatch.setattr(sandbox, "MAX_COMPILED_BYTES", 1000)
    assert sandbox._answer(library, regex("a{3}"), len(pieces)).startswith(REFUSED + b"compiled it takes")
