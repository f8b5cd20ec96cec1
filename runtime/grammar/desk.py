"""From what requests demand of a text to grammars that the engine follows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from radixloop.v1 import inference_pb2

from runtime.errors import InvalidRequest, ShuttingDown
from runtime.grammar.books import GrammarBooks
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.constraint import Constraint, constraint_of
from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.run_grammar import JobGrammar
from runtime.grammar.spec import GrammarRefused, GrammarSpec
from runtime.grammar.tool_rules import tool_rules
from runtime.models.loaded_model import ModelInfo
from runtime.sampling.detokenizer import silent_token_ids
from runtime.sampling.sampling_params import SamplingParams
from runtime.services.convert import ChatInput
from runtime.tool_calls import CallReader, HeldCalls, StreamedCalls, TextOnly, ToolFormat


@dataclass(frozen=True)
class ReplyRules:
    """How the text of a reply comes about, and how it is read.

    Attributes:
        sampling: the request's settings, as they are under that grammar.
        reader: makes what tells calls from text in one choice; None where the prompt is no chat.
    """

    grammar: JobGrammar | None
    sampling: SamplingParams
    reader: Callable[[], CallReader] | None = None


class GrammarDesk:
    """Belongs to the services' event loop."""

    def __init__(
        self, tokenizer: Any, info: ModelInfo, form: Callable[[], ToolFormat], *, seconds: float, books: GrammarBooks
    ) -> None:
        """`form` finds the model's format of tool calls; `seconds` is the time that a grammar may take to compile."""
        self._tokenizer = tokenizer
        self._info = info
        self._form = form
        self._seconds = seconds
        self._books = books
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None

    async def rules(
        self,
        request: inference_pb2.GenerateRequest,
        chat: ChatInput | None,
        sampling: SamplingParams,
        payer: str | None,
    ) -> ReplyRules:
        """What a request demands; `payer` is whose turn its grammar takes. Raises InvalidRequest, CompilerBusy."""
        offered = chat.tools if chat is not None else []
        text, tools = None, None
        if offered or request.HasField("tool_choice") or request.WhichOneof("constraint") is not None:
            # A long schema takes a while to read, and others are answered meanwhile.
            text, tools = await asyncio.to_thread(lambda: (constraint_of(request), tool_rules(request, offered)))
        if chat is None:
            return await self.constrain(text, sampling, payer)
        if tools is None:
            plain = request.tool_choice.mode == inference_pb2.TOOL_MODE_NONE or text is not None
            rules = await self.constrain(text, sampling, payer)
            return replace(rules, reader=TextOnly if plain else lambda: HeldCalls(bare=False))
        form = await asyncio.to_thread(self._form)
        field = "prompt.chat.tools" if text is None or tools.required else text.field
        try:
            rules = await self._under(tools.spec(form, text), field, sampling, payer)
        except InvalidRequest:
            if not tools.wishes:
                raise
            rules = await self._under(tools.without_wishes().spec(form, text), field, sampling, payer)
        return replace(rules, reader=lambda: StreamedCalls(form))

    async def constrain(
        self, text: Constraint | None, sampling: SamplingParams, payer: str | None = None
    ) -> ReplyRules:
        """A constraint alone. Raises InvalidRequest, CompilerBusy."""
        return ReplyRules(None, sampling) if text is None else await self._under(text.spec, text.field, sampling, payer)

    def close(self) -> None:
        """End what compiles."""
        if self._compiler is not None:
            self._compiler.close()

    async def _under(self, spec: GrammarSpec, field: str, sampling: SamplingParams, payer: str | None) -> ReplyRules:
        if not self._info.eos_token_ids:
            raise InvalidRequest(field, "set", "the model names no end token, so no text could end")
        compiler = self._compiler if self._compiler is not None else await asyncio.to_thread(self._make)
        future = compiler.compiled(spec, payer)
        try:
            compiled = await _shared(future)
        except GrammarRefused as error:
            raise InvalidRequest(field, spec.text, str(error)) from None
        finally:
            compiler.leave(spec, future)
        library = compiler.library
        grammar = JobGrammar(compiled, spec.lazy, sampling.ignore_eos, library.textless(spec), library.end_tokens)
        # Where a grammar is not lazy its end is the text's.
        return ReplyRules(grammar, sampling if spec.lazy else replace(sampling, ignore_eos=False))

    def _make(self) -> GrammarCompiler:
        # Takes part of a second, and not every server is asked for a grammar.
        from runtime.grammar.xgrammar_library import XGrammarLibrary

        with self._lock:
            if self._compiler is not None:
                return self._compiler
            info = self._info
            silent = silent_token_ids(self._tokenizer)
            library = XGrammarLibrary.of_tokenizer(self._tokenizer, info.vocab_size, info.eos_token_ids, silent)
            made = GrammarCompiler(library, info.vocab_size, seconds=self._seconds, books=self._books)
            self._compiler = made
            return made


async def _shared(future: Future[CompiledGrammar]) -> CompiledGrammar:
    """Wait for what others may wait for too: who gives up must not take it from them."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        # Of what waits and not of who waits: the runtime stops.
        if future.cancelled():
            raise ShuttingDown("the runtime has stopped") from None
        raise
