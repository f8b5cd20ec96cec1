"""Loops of other projects' agents with tools that truly run, one a file. docs/agents.md says how to start them."""
