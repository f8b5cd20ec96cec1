"""From a name to a forward pass that was proved to be right: loading, refusals, probes, products."""
