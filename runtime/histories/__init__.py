"""Texts whose token ids are known, so that a history sent as text keeps the tokens that it was generated with."""
