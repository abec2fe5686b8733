"""HSDAGPlacement: placing as an OpenVINO pass, for pipelines that are built of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import openvino as ov

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.utils.lazy import passes

if TYPE_CHECKING:
    from ov_hsdag.model.placement import Placement


class HSDAGPlacement(passes.ModelPass):  # type: ignore[misc]
    """Places the model on several devices, as `ov_hsdag.place` does.

    The model is normalized, annotated and carries the placement.

    Example:
        ```python
        import openvino.passes

        manager = openvino.passes.Manager()
        manager.register_pass(ov_hsdag.HSDAGPlacement(device="HETERO:GPU,CPU"))
        manager.run_passes(model)
        ```

    Attributes:
        placement: The last placement made; None before the first.
    """

    def __init__(
        self,
        device: str | Sequence[str],
        *,
        core: ov.Core | None = None,
        report: Callable[[str], None] | None = None,
        options: PlaceOptions | None = None,
        **given: Any,
    ) -> None:
        """Keeps the arguments. The devices are checked at once, the options when the pass runs.

        Args:
            device: The devices, in order of preference: "HETERO:GPU,CPU", or ["GPU", "CPU"].
            core: Asked what the devices support, where it has them. A new one by default.
            report: Called with a few words whenever a phase begins or something else is measured.
            options: Options of `ov_hsdag.place`.
            given: Options by name, such as objective="throughput"; they override those of `options`.

        Raises:
            TypeError: There is no such option.
            UserError: `device` is no HETERO device list, or an option is of another type.
        """
        super().__init__()
        DeviceSet.parse(device)
        self.placement: Placement | None = None
        self._device, self._core, self._report = device, core, report
        self._options = PlaceOptions.of(options, given)

    def run_on_model(self, model: ov.Model) -> bool:
        """Places the model in place. Errors of `ov_hsdag.place` leave `Manager.run_passes` unchanged.

        Returns:
            True: the model has changed.
        """
        # Imported here, so that making a pass does not import the code for measuring.
        from ov_hsdag.placing.place import place

        # A Manager passes the native class; wrapping it makes no copy of the model.
        model = model if isinstance(model, ov.Model) else ov.Model(model)
        self.placement = place(model, self._device, core=self._core, report=self._report, options=self._options)
        return True
