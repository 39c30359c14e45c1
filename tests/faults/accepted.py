"""What looks like bad input and is accepted all the same, each with its reason."""

from __future__ import annotations

ACCEPTED: tuple[tuple[str, str], ...] = ()
"""(pattern over 'kind: name', reason)"""
