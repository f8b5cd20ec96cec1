"""How much to draft, so that it pays: expected tokens a second, from what drafts held and what steps took."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from runtime.drafting.drafts import Draft
from runtime.scheduling.step_costs import StepCosts

# A kind of draft is known by about its last so many tested tokens, a sequence by far fewer: it changes its mind.
_KIND_MEMORY = 512.0
_RUN_MEMORY = 12.0
# How many tested tokens what is known of the kind counts for beside the sequence's own.
_KIND_WEIGHT = 4.0
# Before anything was tested: (tokens that held, tokens tested).
_FIRST_GUESS = (2.0, 4.0)
# Less than this is not worth the estimates' error.
_LEAST_GAIN = 1.03
# The share of time that is spent on finding out whether drafts that do not look worth it are, and how much may be saved
# up, in steps.
_TRIAL_SHARE = 0.004
_TRIALS_SAVED = 1.0
# What a trial costs at least, in steps: noise may have made a row look free, and one step in twelve says enough.
_LEAST_TRIAL_COST = 0.05
# A token that is less likely pays nowhere, and is not looked at: hopeless drafts are to cost next to no thought either.
_LEAST_LIKELY = 0.02
# What a row beside a prompt chunk costs, in tokens of decoding, until both were measured.
_FIRST_ROW_COST = 0.3


class RunRecord:
    """What the drafts of one sequence came to, lately. `greedy`: whether it always takes the likeliest token."""

    __slots__ = ("greedy", "held", "tested")

    def __init__(self, *, greedy: bool) -> None:
        self.greedy = greedy
        self.held = 0.0
        self.tested = 0.0


class DraftControl:
    """Decides how many tokens of each draft are verified. Not thread-safe."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._kinds: dict[Hashable, tuple[float, float]] = {}
        self._trial_credit = 0.0

    def chance(self, record: RunRecord, draft: Draft) -> float:
        """The probability that a token of this draft holds where the ones before it did."""
        held, tested = self._kinds.get((draft.kind, record.greedy), _FIRST_GUESS)
        return (_KIND_WEIGHT * held / tested + record.held) / (_KIND_WEIGHT + record.tested)

    def lengths(
        self, drafts: Sequence[tuple[RunRecord, Draft]], batch: int, room: int, *, beside_prompt: bool = False
    ) -> list[int]:
        """How many tokens of each draft to verify; 0 where it would not pay.

        Args:
            batch: sequences that decode in this step, with or without a draft.
            room: draft tokens at most, together.
            beside_prompt: whether the step computes tokens of prompts too.
        """
        lengths = [0] * len(drafts)
        steps: list[tuple[float, int]] = []
        for i, (record, draft) in enumerate(drafts):
            likely = chance = self.chance(record, draft)
            for _ in range(len(draft.tokens)):
                steps.append((likely, i))
                likely *= chance
                if likely < _LEAST_LIKELY:
                    break
        # Likeliest first; those of one draft stay in their order, since each is less likely than the one before it.
        steps.sort(key=lambda step: -step[0])
        steps = steps[:room]
        worth = self._worth_beside_prompt(steps, batch) if beside_prompt else self._worth(steps, batch)
        if not worth and steps and not beside_prompt and not self.costs.check_due(batch):
            worth = self._trial(batch)
        for _, i in steps[:worth]:
            lengths[i] += 1
        return lengths

    def verified(self, record: RunRecord, draft: Draft, tested: int, held: int) -> None:
        """Of a draft, `tested` tokens were compared with what the model says, and `held` were right.

        What follows the first wrong one was not compared.
        """
        kind = (draft.kind, record.greedy)
        keep = max(0.0, 1 - tested / _KIND_MEMORY)
        old_held, old_tested = self._kinds.get(kind, _FIRST_GUESS)
        self._kinds[kind] = (keep * old_held + held, keep * old_tested + tested)
        keep = max(0.0, 1 - tested / _RUN_MEMORY)
        record.held = keep * record.held + held
        record.tested = keep * record.tested + tested

    def _worth(self, steps: list[tuple[float, int]], batch: int) -> int:
        """The number of draft rows with the most expected tokens a second."""
        best, worth, tokens = batch * _LEAST_GAIN, 0, float(batch)
        for extra, (likely, _) in enumerate(steps, 1):
            tokens += likely
            rate = tokens / self.costs.ratio(batch, extra)
            if rate > best:
                best, worth = rate, extra
        return 0 if self.costs.check_due(batch) else worth

    def _worth_beside_prompt(self, steps: list[tuple[float, int]], batch: int) -> int:
        """The number of rows that are likelier to save a decoded token than they cost time that one takes."""
        row_s, plain_s = self.costs.row_s, self.costs.plain_s(batch)
        cost = row_s * batch / plain_s if row_s is not None and plain_s else _FIRST_ROW_COST
        return sum(likely > cost * _LEAST_GAIN for likely, _ in steps)

    def _trial(self, batch: int) -> int:
        """One row against expectation, whenever its cost has been saved up: what did not pay may pay by now."""
        self._trial_credit = min(_TRIALS_SAVED, self._trial_credit + _TRIAL_SHARE)
        cost = max(_LEAST_TRIAL_COST, self.costs.ratio(batch, 1) - 1)
        if self._trial_credit < cost:
            return 0
        self._trial_credit -= cost
        return 1
