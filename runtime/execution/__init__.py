"""One step on the model: what is laid out, run, recorded as a graph, and read back."""
