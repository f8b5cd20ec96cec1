"""Commands of `radix-runtime`, each with its options and tables."""
