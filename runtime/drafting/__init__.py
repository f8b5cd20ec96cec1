"""Drafts: guesses of how a sequence goes on, and how many of them pay."""
