"""What the commands of `agent-client` do; each is a function `run` that returns the exit code."""
