"""Who computes what in the next step, and how much of it."""
