"""Who may call a runtime, from where, and what of the cache is theirs."""
