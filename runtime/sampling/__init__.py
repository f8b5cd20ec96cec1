"""From logits to text: choosing tokens, decoding them, stopping."""
