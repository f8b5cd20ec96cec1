"""Conversations that grow, are cancelled, forked, leased and flushed at random, and what their replies should be."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_client import RadixClient
from agent_client.client import GenerationStream, Session
from agent_client.errors import FailedPrecondition, Internal, NotFound, ResourceExhausted
from agent_client.results import Usage

SALTS = (None, "a", "b")
# Tokens whose log-probabilities are so close may change places with the shape of a batch.
TIE = 2e-3
CALL_S = 120.0


@dataclass
class Conversation:
    """What a client has sent and was told. `pending` was not sent yet; a `session` is kept by the runtime."""

    salt: str | None
    limit: int
    pending: list[int]
    tokens: list[int] = field(default_factory=list)
    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Tally:
    """What happened, by name; prompt tokens, by where they were found; and everything that should not have been."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def count(self, **more: int) -> None:
        with self.lock:
            self.counts.update(more)

    def found(self, usage: Usage) -> None:
        with self.lock:
            self.tokens.update({"prompt": usage.prompt_tokens, "cached": usage.cached_tokens})
            self.tokens.update(usage.cached_by_tier)

    def is_wrong(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what[:500])


class Traffic:
    """Threads that talk to a runtime until they are told to stop.

    Args:
        vocabulary: token ids to draw from.
        live: conversations that go on at a time.
        longest: tokens after which one is over and another begins.
        sampled: the share of replies that are computed again without the cache.
    """

    def __init__(
        self, target: str, vocabulary: range, *, live: int, longest: int, workers: int, sampled: float, seed: int
    ) -> None:
        self._clients = {salt: RadixClient(target, salt=salt, timeout_s=CALL_S) for salt in SALTS}
        self._vocabulary = vocabulary
        self._longest = longest
        self._sampled = sampled
        dice = random.Random(seed)
        self._heads = [dice.choices(vocabulary, k=dice.randrange(40, 160)) for _ in range(4)]
        self.tally = Tally()
        self.disk_fails = False
        self.conversations = [self._begin(dice, anywhere=True) for _ in range(live)]
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._resting = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed} {n}"),), daemon=True)
            for n in range(workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Return once every thread has finished what it does, and waits."""
        self._go.clear()
        for _ in self._threads:
            self._resting.acquire()

    def resume(self) -> None:
        self._go.set()

    def stop(self) -> None:
        """End the threads and close the connections."""
        self._stop.set()
        self._go.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        for client in self._clients.values():
            client.close()

    @property
    def live_tokens(self) -> int:
        return sum(len(conversation.tokens) for conversation in self.conversations)

    def recompute(self, conversation: Conversation, wanted: int) -> Usage:
        """Go on with a conversation with and without the cache, and compare; what the cache had."""
        client = self._clients[conversation.salt]
        reply = client.generate(conversation.tokens, max_tokens=wanted, ignore_eos=True, temperature=0)
        self._compare(conversation.salt, conversation.tokens, reply.token_ids)
        return reply.usage

    def _begin(self, dice: random.Random, *, anywhere: bool = False) -> Conversation:
        limit = dice.randrange(self._longest // 2, self._longest)
        own = dice.randrange(20, limit - 180) if anywhere else dice.randrange(20, 120)
        pending = dice.choice(self._heads) + dice.choices(self._vocabulary, k=own)
        conversation = Conversation(dice.choice(SALTS), limit, pending)
        if dice.random() < 0.4:
            conversation.session = self._clients[conversation.salt].session()
        return conversation

    def _work(self, dice: random.Random) -> None:
        while not self._stop.is_set():
            if not self._go.is_set():
                self._resting.release()
                self._go.wait()
                continue
            number = dice.randrange(len(self.conversations))
            conversation = self.conversations[number]
            if not conversation.lock.acquire(blocking=False):
                continue
            try:
                self._do(dice, number, conversation)
            except Exception as error:
                self.tally.is_wrong(f"{type(error).__name__}: {error}")
                time.sleep(0.2)
            finally:
                conversation.lock.release()

    def _do(self, dice: random.Random, number: int, conversation: Conversation) -> None:
        client = self._clients[conversation.salt]
        kind = dice.random()
        if len(conversation.tokens) > conversation.limit:
            if conversation.session is not None:
                conversation.session.close()
            self.conversations[number] = self._begin(dice)
        elif kind < 0.002:
            self._flush(client, everything=dice.random() < 0.2)
        elif kind < 0.04:
            self._lease(dice, client, conversation)
        elif kind < 0.05:
            client.set_quota(dice.choice((None, 0.3, 0.6)))
            self.tally.count(quotas=1)
        elif kind < 0.07:
            client.explain(conversation.tokens + conversation.pending)
            self.tally.count(explained=1)
        elif kind < 0.10 and conversation.tokens:
            self._fork(dice, conversation)
        elif kind < 0.12 and conversation.tokens:
            self._cut(dice, conversation)
        else:
            self._turn(dice, conversation)

    def _flush(self, client: RadixClient, *, everything: bool) -> None:
        try:
            client.flush(all_namespaces=everything)
            self.tally.count(flushes=1)
        except Internal as error:
            # What cannot be erased from a file is named, and only a disk that fails is an excuse.
            if not self.disk_fails or "could not be erased" not in error.message:
                raise
            self.tally.count(flushes_not_erased=1)

    def _lease(self, dice: random.Random, client: RadixClient, conversation: Conversation) -> None:
        prompt = conversation.tokens + conversation.pending
        try:
            lease = client.lease(prompt, ttl_s=dice.uniform(0.5, 20))
            self.tally.count(leases=1)
            if dice.random() < 0.3:
                client.release_lease(lease.id)
        except ResourceExhausted:
            self.tally.count(leases_refused=1)
        except NotFound:
            self.tally.count(leases_ended=1)

    def _fork(self, dice: random.Random, conversation: Conversation) -> None:
        number = dice.randrange(len(self.conversations))
        replaced = self.conversations[number]
        if not replaced.lock.acquire(blocking=False):
            return
        try:
            if replaced.session is not None:
                replaced.session.close()
            session = None if conversation.session is None else conversation.session.fork()
            forked = Conversation(conversation.salt, conversation.limit, [], list(conversation.tokens), session)
            self.conversations[number] = forked
            self.tally.count(forks=1)
        finally:
            replaced.lock.release()

    def _cut(self, dice: random.Random, conversation: Conversation) -> None:
        keep = dice.randrange(1, len(conversation.tokens) + 1)
        if conversation.session is not None:
            conversation.session.truncate(tokens=keep)
        del conversation.tokens[keep:]
        self.tally.count(cuts=1)

    def _turn(self, dice: random.Random, conversation: Conversation) -> None:
        new = conversation.pending or dice.choices(self._vocabulary, k=dice.randrange(4, 60))
        prompt = conversation.tokens + new
        wanted = dice.randrange(3, 24)
        stream: GenerationStream
        if conversation.session is not None:
            stream = conversation.session.stream(new, max_tokens=wanted, ignore_eos=True, temperature=0)
        else:
            n = 2 if dice.random() < 0.05 else 1
            client = self._clients[conversation.salt]
            stream = client.stream(prompt, max_tokens=wanted, ignore_eos=True, temperature=0, n=n)
        if dice.random() < 0.15:
            for _ in range(dice.randrange(4)):
                next(stream, None)
            stream.cancel()
            self.tally.count(cancelled=1)
            self._rewind(conversation)
            return
        reply = stream.result()
        conversation.pending = []
        conversation.tokens = prompt + reply.token_ids
        self.tally.count(turns=1)
        self.tally.found(reply.usage)
        if reply.session_tokens not in (None, len(conversation.tokens)):
            self.tally.is_wrong(f"a session of {len(conversation.tokens)} tokens has {reply.session_tokens}")
        if dice.random() < self._sampled:
            self._compare(conversation.salt, prompt, reply.token_ids)

    def _rewind(self, conversation: Conversation) -> None:
        """After a cancel that may have come when the turn was over: back to what it went on from."""
        if conversation.session is None:
            return
        if not conversation.tokens:
            conversation.session.close()
            conversation.session = None
            return
        for _ in range(200):
            try:
                conversation.session.truncate(tokens=len(conversation.tokens))
                return
            except FailedPrecondition:
                time.sleep(0.01)
        self.tally.is_wrong("a cancelled turn does not end")

    def _compare(self, salt: str | None, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Compute a reply again, neither reading nor writing the cache."""
        cold = self._clients[salt].generate(
            prompt,
            bypass_cache=True,
            max_tokens=len(tokens),
            ignore_eos=True,
            temperature=0,
            logprobs=True,
            top_logprobs=2,
        )
        self.tally.count(compared=1)
        for at, (was, step) in enumerate(zip(tokens, cold.logprobs, strict=True)):
            if was == step.token_id:
                continue
            (_, best), (_, second) = step.top
            if best - second < TIE:
                self.tally.count(ties=1)
            else:
                self.tally.is_wrong(
                    f"{was} instead of {step.token_id} as token {at} after {len(prompt)}, {best - second:.2g} apart"
                )
            return
