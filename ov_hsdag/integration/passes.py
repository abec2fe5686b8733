"""HSDAGPlacement: placing as an OpenVINO pass, for pipelines that are built of passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

import openvino as ov

from ov_hsdag.utils.compat import ModelPass

if TYPE_CHECKING:
    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.model.placement import Placement


class HSDAGPlacement(ModelPass):  # type: ignore[misc]
    """Place the model on several devices, as :func:`ov_hsdag.place` does: annotated and with the placement inside.

    device     "HETERO:GPU,CPU": the devices, in order of preference
    objective  "latency" of one request or "throughput" of many
    profile    speeds of the devices (a Profile or the path of its JSON file), None: built-in
    policy     name or directory of the policy, None: the default
    core       where the devices are asked what they support, None: a new one
    affinity   a placement that is given instead of decided: {node: device}, a Placement or the path of its JSON file
    shapes     example shapes for inputs with dynamic ones, {input: shape}

    ``placement`` is the last placement made, None before the first. Errors are those of ``ov_hsdag.place``; they come
    out of ``Manager.run_passes`` as they are.

        manager = openvino.passes.Manager()
        manager.register_pass(ov_hsdag.HSDAGPlacement(device="HETERO:GPU,CPU"))
        manager.run_passes(model)
    """

    def __init__(
        self,
        device: str,
        *,
        objective: str = "latency",
        profile: Profile | str | PathLike[str] | None = None,
        policy: str | None = None,
        core: ov.Core | None = None,
        affinity: Mapping[str, str] | Placement | str | PathLike[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        self.placement: Placement | None = None

        def run(model: ov.Model) -> Placement:
            from ov_hsdag.place import place

            return place(
                model,
                device,
                objective=objective,
                profile=profile,
                policy=policy,
                core=core,
                affinity=affinity,
                shapes=shapes,
            )

        self._place = run

    def run_on_model(self, model: ov.Model) -> bool:
        """Place ``model`` in place. Returns True: the model has changed."""
        # A Manager hands over the native class; this wrapper refers to the same model, it is no copy.
        self.placement = self._place(model if isinstance(model, ov.Model) else ov.Model(model))
        return True
