"""Stops nbgrader's own `autograde` (and its button in formgrader) from running submissions outside the sandbox."""

from __future__ import annotations

from typing import Any

from traitlets.config import LoggingConfigurable


class UseSpecdecGrade(LoggingConfigurable):
    """A preprocessor that refuses; nbgrader_config.py puts it where nbgrader would begin."""

    enabled = True

    def __call__(self, notebook: Any, resources: Any) -> Any:
        """Raises RuntimeError."""
        raise RuntimeError(
            "nbgrader's autograde runs submissions without a sandbox: use `specdec grade auto` instead; "
            "it keeps all marks, and restores what this command has just removed"
        )
