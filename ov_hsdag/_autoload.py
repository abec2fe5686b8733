"""Patch OpenVINO, and optimum's command line, when, and only when, a program imports it.

The .pth line of the wheel runs at every start of the interpreter, where even opening a file would be felt. It only puts
a finder before the others, which finds nothing and imports this module when somebody imports openvino or
optimum.commands. This module's own finder then watches for a few modules and, once one of them has run, hands it to
:mod:`ov_hsdag.integration`. ``OV_HSDAG_DISABLE=1`` turns that off, except where virtual devices are declared, which are
devices for unplaced models as well.
"""

from __future__ import annotations

import sys

from ov_hsdag._env import disabled, has_virtual_devices

TYPE_CHECKING = False  # typing's own costs milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WATCHED = {
    "openvino._ov_api": "ov_hsdag.integration.core",
    "openvino.runtime.ie_api": "ov_hsdag.integration.core",  # where Core was in 2024
    "openvino.tools.ovc.main": "ov_hsdag.integration.converters",
    "openvino.tools.mo.convert_impl": "ov_hsdag.integration.converters",
    "optimum.commands.optimum_cli": "ov_hsdag.cli.optimum_cli",
}
"""Module → our module whose ``patch(module)`` is called once the former has been executed."""


def _off() -> bool:
    return disabled() and not has_virtual_devices()


def install() -> None:
    """Watch for OpenVINO's modules and patch those that are loaded already. Calling it again does no harm."""
    if _off():
        return
    if not any(type(finder) is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in WATCHED:
        module = sys.modules.get(name)
        # A module that is still running its own code gets its patch from the finder.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _patch(module)


def _patch(module: ModuleType) -> None:
    if _off():
        return
    try:
        from importlib import import_module

        import_module(WATCHED[module.__name__]).patch(module)
    except Exception as error:  # OpenVINO has to work for everybody, whatever is wrong with us
        _warn(f"ov_hsdag could not extend {module.__name__}: {error}")


def _warn(text: str) -> None:
    """Warn, and raise nothing where warnings are errors: this is in the middle of somebody else's import."""
    import warnings

    try:
        # A fixed level and no `warn_caller`: this has to work where the rest of the package cannot be imported.
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(f"RuntimeWarning: {text}", file=sys.stderr)


class _Finder:
    """A meta path finder that finds nothing itself: the others find a watched module, and it adds a step after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in WATCHED or _off():
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_after(spec)
                return spec
        return None


def _call_after(spec: ModuleSpec) -> None:
    """Make the spec's loader patch the module after executing it. Its class stays, so sources can be read as ever."""
    loader = spec.loader
    execute: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
    if loader is None or execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        _patch(module)

    try:
        loader.exec_module = exec_module  # type: ignore[method-assign]
    except AttributeError:  # a loader without a __dict__: this import goes unpatched, `import ov_hsdag` still works
        return


install()
