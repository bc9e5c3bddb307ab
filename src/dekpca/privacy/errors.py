"""Errors of which other nodes may hear something, where sums are secure or private: else they hear the class of an error alone."""

from __future__ import annotations


class PublicError(ValueError):
    """`told` is what other nodes hear: a text that holds nothing of this node's rows. Default: the whole text."""

    def __init__(self, text: str, told: str | None = None):
        super().__init__(text)
        self.told = text if told is None else told
