"""Holding full executions: a ladder of mechanisms, tried by running them, from the strictest down."""

from __future__ import annotations

from tenuto.sandboxes.ladder import Ladder

__all__ = ["Ladder"]
