"""The version of this installation. The build of the package reads it here."""

from __future__ import annotations

__version__ = "0.1.0"
