"""Settings of the native core's searches, which can be changed without a build; cpp_ext/settings.hpp explains each."""

from __future__ import annotations

from collections.abc import Mapping

from ov_hsdag import _native

SearchSettings = str | Mapping[str, Mapping[str, float]]
"""A preset ("fast", "default", "thorough"), or numbers by group and name; missing numbers have their defaults."""


def search_settings(given: SearchSettings = "default") -> dict[str, dict[str, float]]:
    """Completes settings of the searches by their defaults.

    Args:
        given: a preset, or some numbers by group and name.

    Returns:
        All settings by group and name, which a caller may change and pass on.

    Raises:
        ValueError: an unknown preset, group or name, or a number outside of its range.
    """
    return _native.search_settings(given)
