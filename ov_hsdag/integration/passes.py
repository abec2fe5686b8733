"""HSDAGPlacement: placing as an OpenVINO pass, for pipelines that are built of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

import openvino as ov

from ov_hsdag.utils.compat import ModelPass

if TYPE_CHECKING:
    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.costs.stored import ModelCosts
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.model.workload import Workload


class HSDAGPlacement(ModelPass):  # type: ignore[misc]
    """Places the model on several devices, as `ov_hsdag.place` does.

    The model is normalized, annotated and carries the placement.

    Example:
        ```python
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
        objective: str = "latency",
        profile: Profile | str | PathLike[str] | None = None,
        policy: str | PathLike[str] | None = None,
        core: ov.Core | None = None,
        affinity: Mapping[str, str] | Placement | str | PathLike[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        memory: Mapping[str, int | str] | None = None,
        measure: bool | None = None,
        measure_seconds: float | None = None,
        report: Callable[[str], None] | None = None,
        costs: ModelCosts | str | PathLike[str] | None = None,
        workload: Workload | str | None = None,
        context: int | None = None,
        kv_precision: str | None = None,
        search_seconds: float | None = None,
    ) -> None:
        """Keeps the arguments; they are checked when the pass runs.

        Args:
            device: The devices, in order of preference: "HETERO:GPU,CPU", or ["GPU", "CPU"].
            objective: "latency" of one request or "throughput" of many in flight.
            profile: Speeds of the devices, or the path of a profile's file; built-in profiles by default.
            policy: Name or folder of the HSDAG policy; see :func:`ov_hsdag.place`.
            core: Asked what the devices support, where it has them. A new one by default.
            affinity: A placement that is given (or a file of one) instead of decided: {node: device}.
            shapes: Example shapes of dynamic inputs for the cost model, and for measuring, by input name.
            memory: Bytes that the model may have on a device, by the device's name, in place of the profile's limits.
            measure: Measure the best predicted placements on the devices and choose by that. By default the choice is
                the prediction's.
            measure_seconds: Time budget of measuring, seconds; by default that of `ov_hsdag.place`.
            report: Called with a few words whenever a phase begins or something else is measured.
            costs: What `ov-hsdag calibrate --model` measured (or its file).
            workload: What a decoder with states is asked for, such as "prompt=1024,generate=256".
            context: Tokens that the states must have memory for.
            kv_precision: "u8", "f16", "bf16" or "f32": in which devices keep KV caches.
            search_seconds: Time of the search for a placement; by default 0.1 to 0.4 s.
        """
        super().__init__()
        self.placement: Placement | None = None

        def run(model: ov.Model) -> Placement:
            # Making a pass stays cheap: measuring is imported where placing is.
            from ov_hsdag.measuring import selection
            from ov_hsdag.placing.place import place

            return place(
                model,
                device,
                objective=objective,
                profile=profile,
                policy=policy,
                core=core,
                affinity=affinity,
                shapes=shapes,
                memory=memory,
                measure=measure,
                measure_seconds=selection.SECONDS if measure_seconds is None else measure_seconds,
                report=report,
                costs=costs,
                workload=workload,
                context=context,
                kv_precision=kv_precision,
                search_seconds=search_seconds,
            )

        self._place = run

    def run_on_model(self, model: ov.Model) -> bool:
        """Places the model, in place; what `ov_hsdag.place` raises comes out of `Manager.run_passes` as it is.

        Args:
            model: Any model.

        Returns:
            True: the model has changed.

        Raises:
            UserError: Bad input, or a device that is to be measured and is not on this machine.
            RunError: A policy that was asked for does not run, or there is no folder for the temporary files of
                measuring.
        """
        # A Manager hands over the native class; this wrapper refers to the same model, it is no copy.
        self.placement = self._place(model if isinstance(model, ov.Model) else ov.Model(model))
        return True
