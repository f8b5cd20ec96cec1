"""The masks of a step, found while its forward pass runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime

from runtime.errors import EngineFailed
from runtime.execution.logit_rows import LogitRows
from runtime.grammar.books import GrammarBooks
from runtime.grammar.masks import Mask, MaskBuffer
from runtime.grammar.run_grammar import RunGrammar
from runtime.grammar.spec import GrammarRefused

# A choice's grammar, and the draft that a step tries behind its last token.
Row = tuple[RunGrammar | None, Sequence[int]]
# After its forward pass a step waits so long for a mask. No grammar that passed its trial comes near.
LONGEST_WAIT_S = 2.0


class MaskWorker:
    """One thread that finds masks. Belongs to the engine's thread."""

    def __init__(self, vocab_size: int, books: GrammarBooks) -> None:
        self._vocab_size = vocab_size
        self._books = books
        self._thread: ThreadPoolExecutor | None = None
        self._buffer = MaskBuffer(vocab_size)
        self._pending: dict[int, Future[list[Mask | None]]] = {}

    def begin(self, rows: Sequence[Row]) -> None:
        """Start on the masks of a step.

        `rows` are the choices whose logits come, in their order.
        """
        self._pending.clear()
        for index, row in enumerate(rows):
            self._submit(index, row)

    def apply(self, rows: Sequence[Row], logits: LogitRows) -> LogitRows:
        """The logits of what `begin` was told of, each choice's row followed by its draft's, with their masks."""
        if not self._pending:
            return logits
        began = time.perf_counter()
        masks: dict[int, Mask] = {}
        errors: dict[int, Exception] = {}
        row = 0
        for index, (_, draft) in enumerate(rows):
            if index in self._pending:
                try:
                    found = self._pending.pop(index).result(LONGEST_WAIT_S)
                    masks |= {row + place: mask for place, mask in enumerate(found) if mask is not None}
                except NotInTime:
                    self._change_threads(rows)
                    errors[row] = GrammarRefused(f"finding its next tokens took over {LONGEST_WAIT_S:g} s")
                except GrammarRefused as error:
                    errors[row] = error
                except Exception as error:
                    errors[row] = EngineFailed(f"the grammar's next tokens were not found: {error!r}")
            row += 1 + len(draft)
        self._books.wait.observe_one(time.perf_counter() - began)
        return logits.masked(masks, errors)

    def close(self) -> None:
        """Let the thread go."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _find(self, grammar: RunGrammar, draft: list[int], buffer: MaskBuffer) -> list[Mask | None]:
        began = time.thread_time()
        found = grammar.masks(draft, buffer)
        took = time.thread_time() - began
        self._books.mask.observe_one(took)
        grammar.took(took, len(found))
        return found

    def _change_threads(self, rows: Sequence[Row]) -> None:
        """Leave the thread to the grammar that holds it until it has found its mask, and begin the others again."""
        waiting = [index for index, future in self._pending.items() if future.cancel()]
        self.close()
        self._thread = None
        # The other one is still written to.
        self._buffer = MaskBuffer(self._vocab_size)
        for index in waiting:
            self._submit(index, rows[index])

    def _submit(self, index: int, row: Row) -> None:
        grammar, draft = row
        if grammar is not None:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
            self._pending[index] = self._thread.submit(self._find, grammar, list(draft), self._buffer)
