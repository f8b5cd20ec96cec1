"""What a pool's precision does to a model's answers, measured."""
