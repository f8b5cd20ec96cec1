"""How keys and values are kept: their precision, and a block as bytes."""
