"""Computes the number of requests that keeps the devices of a split model busy."""

# Requests for each device and for each submodel, see `requests_in_flight`.
PER_DEVICE = 3
PER_SUBMODEL = 2

MOST = 16
"""Largest number of requests for submodels: each request costs the memory of all tensors between submodels."""


def requests_in_flight(reported: int, devices: int, submodels: int) -> int:
    """Computes the number of requests to keep in flight for the throughput of a model that HETERO runs.

    A request is in one submodel at a time. HETERO reports the largest number that any submodel asks for, which is 1 for
    a device with one stream, so the other devices would wait. Three requests for each device keep all of them busy: one
    runs, one waits, and one is with the program, which reads results and sets inputs. Two requests for each submodel
    (one runs, one waits) let all submodels work if those of one device have their own streams, as on CPU devices.

    Args:
        reported: the number that HETERO reports.
        devices: number of devices of the split.
        submodels: number of its submodels.

    Returns:
        The number, which is at least `reported`; for a single device it is `reported`.
    """
    return max(reported, PER_DEVICE * devices, min(PER_SUBMODEL * submodels, MOST)) if devices > 1 else reported
