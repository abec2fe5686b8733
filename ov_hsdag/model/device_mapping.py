"""Placements on other devices than those that they were made for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

Supports = Callable[[str, str], bool]
"""``supports(node, device)``: whether a device can run a node."""


def moved(
    affinity: Mapping[str, str], devices: Sequence[str], targets: Sequence[str], supports: Supports | None
) -> tuple[dict[str, str], list[str]]:
    """Affinities with other devices for the nodes of `devices` that are not among `targets`, see `Placement.mapped`.

    And a line for each device that others replace.
    """
    present = set(affinity.values())
    lost = [device for device in devices if device in present and device not in targets]
    orders = _orders(devices, present, lost, targets)
    found = dict(affinity)
    counts: dict[str, Counter[str]] = {device: Counter() for device in lost}
    for name, device in affinity.items():
        order = orders.get(device)
        if order is None:
            continue
        able = order if supports is None else (target for target in order if supports(name, target))
        found[name] = target = next(iter(able), order[-1])
        counts[device][target] += 1
    replaced = []
    for device, moves in counts.items():
        # OpenVINO's "GPU" is "GPU.0".
        if not all({device, target} == {_kind(device), f"{_kind(device)}.0"} for target in moves):
            shares = ", ".join(f"{count} on {target}" for target, count in moves.items())
            replaced.append(
                f"ov_hsdag: the placement uses {device}, which is not among the devices here "
                f"({', '.join(targets)}); its nodes run: {shares}"
            )
    return found, replaced


def _orders(
    devices: Sequence[str], present: set[str], lost: Sequence[str], targets: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """For each lost device the available ones in the order in which they are tried."""
    taken = present & set(targets)
    orders: dict[str, tuple[str, ...]] = {}
    for device in lost:
        twins = [target for target in targets if _kind(target) == _kind(device) and target not in taken]
        # The next in our own list comes first; what only the requested list has follows, and then the ones before.
        place = devices.index(device)
        ranked = [*devices[place + 1 :], *(t for t in targets if t not in devices), *devices[:place]]
        orders[device] = tuple(dict.fromkeys([*twins[:1], *(target for target in ranked if target in targets)]))
        taken.update(twins[:1])
    return orders


def _kind(device: str) -> str:
    """ "GPU" of "GPU.1". Virtual devices (CPU_A) are a kind each: their properties differ."""
    return device.split(".", 1)[0]
