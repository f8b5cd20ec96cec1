"""Grammars that a reply must follow: compiled off the engine's thread, matched beside its forward pass."""

from runtime.grammar.books import GrammarBooks
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.mask_worker import MaskWorker
from runtime.grammar.run_grammar import JobGrammar, RunGrammar
from runtime.grammar.spec import CompilerBusy, GrammarRefused, GrammarSpec

__all__ = [
    "CompilerBusy",
    "GrammarBooks",
    "GrammarCompiler",
    "GrammarRefused",
    "GrammarSpec",
    "JobGrammar",
    "MaskWorker",
    "RunGrammar",
]
