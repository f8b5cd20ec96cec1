"""Drafts of one engine: found before a step, verified by its logits, and learned from after it."""

from __future__ import annotations

from dataclasses import replace

import torch

from radix import Copy, OutOfBlocks, PrefixStore
from runtime.counters import EngineCounters
from runtime.drafting.draft_control import DraftControl
from runtime.drafting.drafts import Draft, DraftSettings, DraftSource, look_up
from runtime.execution.logit_rows import LogitRows
from runtime.monitoring.step_clock import StepRecord
from runtime.request import Run
from runtime.sampling.sampler import SampledToken


class Drafter:
    """Belongs to the engine's thread, as the store does."""

    def __init__(self, store: PrefixStore, settings: DraftSettings, counters: EngineCounters) -> None:
        self._store = store
        self._settings = settings
        self._counters = counters
        self._control = DraftControl()
        # Of the step that runs: the sequences that choose a token, their draft rows together, and the prompts' tokens.
        self._step: tuple[tuple[int, ...], int, int] = ((), 0, 0)

    def propose(self, work: list[tuple[Run, int]], room: int) -> list[Copy]:
        """Give the runs that choose a token in this step what they may say after it, with room for its KV.

        Args:
            work: what the step computes, as runs and tokens of each.
            room: draft tokens at most, together.

        Returns:
            Copies to carry out before the forward pass.
        """
        choosing = [run for run, n in work if _chooses_alone(run, n)]
        of_prompts = sum(n for _, n in work) - sum(not run.prefilling for run in choosing)
        found = [(run, draft) for run in choosing if (draft := _within_grammar(run, self._find(run))) is not None]
        drafts = [(run.draft_record, draft) for run, draft in found]
        copies: list[Copy] = []
        if not self._settings.adaptive:
            lengths = [len(draft.tokens) for _, draft in found]
        else:
            lengths = self._control.lengths(drafts, len(choosing), room, beside_prompt=of_prompts > 0)
        extra = 0
        for (run, draft), length in zip(found, lengths, strict=True):
            fits = self._make_room(run, min(length, room - extra), copies)
            run.draft = draft.cut(fits)
            extra += fits
        self._step = (tuple(id(run) for run in choosing), extra, of_prompts)
        self._counters.draft_tokens += extra
        return copies

    def verify(self, run: Run, first: SampledToken, rows: LogitRows) -> list[SampledToken]:
        """The tokens that a run takes in this step: `first`, and those after it for as long as its draft holds.

        Every token is chosen as without drafts, by the run's own sampler from the same logits, and the draft only says
        whether the next row of logits belongs to what was chosen. So greedy tokens, and the tokens of a seed, are the
        same as without drafts, and what is sampled has the same distribution: for a draft that is certain of its token
        this is the acceptance rule of Leviathan, Kalman and Matias (2023).

        Args:
            first: chosen from the logits of the last known token.
            rows: after each draft token, float [drafted, vocab]; a row that is not finite ends the draft before it.
        """
        chosen = [first]
        draft, run.draft = run.draft, None
        if draft is None:
            return chosen
        sampler = run.sampler
        written: list[int] = []
        for row, guess in enumerate(draft.tokens.tolist()):
            if chosen[-1].token_id != guess or row in rows.bad:
                break
            if sampler.plain_greedy:
                chosen.append(SampledToken(rows.best[row], None, ()))
                continue
            if not written:
                written = list(run.output.token_ids)
            written.append(guess)
            logits = rows.logits[row].detach().to("cpu", torch.float32)
            chosen.append(sampler.choose(logits, written, rows.allowed.get(row)))
        held = len(chosen) - 1
        self._control.verified(run.draft_record, draft, min(len(draft.tokens), held + 1), held)
        return chosen

    def stepped(self, record: StepRecord) -> None:
        """The step that was proposed for is over."""
        who, extra, of_prompts = self._step
        self._step = ((), 0, 0)
        if of_prompts:
            self._control.costs.prefilled(record.tokens, record.total_s)
        elif who:
            self._control.costs.decoded(who, len(who), extra, record.total_s)

    def _find(self, run: Run) -> Draft | None:
        """The likelier of what the tree holds here and what the run's own text repeats."""
        assert run.seq is not None
        # Its last token needs no successor, so a draft of it could only be thrown away.
        longest = min(self._settings.longest, run.request.max_tokens - len(run.output.token_ids) - 1)
        if longest < 1:
            return None
        opening = not run.output.token_ids
        tree = lookup = None
        if DraftSource.TREE in self._settings.sources:
            tokens = self._store.continuation(run.seq, run.tokens[run.seq.length :], longest)
            tree = Draft(tokens, DraftSource.TREE, 0, opening) if len(tokens) else None
        if DraftSource.LOOKUP in self._settings.sources:
            lookup = look_up(run.tokens, longest)
            lookup = lookup and replace(lookup, opening=opening)
        if tree is None or lookup is None:
            return tree or lookup
        chance = self._control.chance
        return tree if chance(run.draft_record, tree) >= chance(run.draft_record, lookup) else lookup

    def _make_room(self, run: Run, length: int, copies: list[Copy]) -> int:
        """Reserve for a draft; return how much of it fits. Nobody makes way for a guess."""
        if length <= 0:
            return 0
        seq = run.seq
        assert seq is not None
        try:
            copies += self._store.reserve(seq, run.uncomputed + length, optional=True)
        except OutOfBlocks:
            return min(length, seq.capacity - seq.length - run.uncomputed)
        return length


def _chooses_alone(run: Run, n: int) -> bool:
    """Whether a run that computes `n` tokens chooses one for itself then, and not for other choices too."""
    request = run.request
    if n != run.uncomputed or request.job.prefill_only:
        return False
    return bool(run.output.token_ids) or request.job.sampling.n == 1


def _within_grammar(run: Run, draft: Draft | None) -> Draft | None:
    """A draft up to the first token that cannot come."""
    if draft is None or run.grammar is None:
        return draft
    return draft.cut(run.grammar.trim(draft.tokens.tolist()))
