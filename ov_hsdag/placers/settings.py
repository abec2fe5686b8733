"""Settings of the native core's searches, which need no build to be changed; cpp_ext/settings.hpp says what each is."""

from __future__ import annotations

from collections.abc import Mapping

from ov_hsdag import _native

SearchSettings = str | Mapping[str, Mapping[str, float]]
"""A preset ("fast", "default", "thorough"), or numbers by group and name; those that are not given are the default."""


def search_settings(given: SearchSettings = "default") -> dict[str, dict[str, float]]:
    """All settings of the searches, by group and name: to print, or to change and hand on.

    Raises ValueError: an unknown preset, group or name, or a number that cannot be.
    """
    return _native.search_settings(given)
