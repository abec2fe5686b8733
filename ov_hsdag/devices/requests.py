"""How many requests keep the devices of a split model busy."""

PER_DEVICE = 3
PER_SUBMODEL = 2

MOST = 16
"""Submodels ask for no more requests than this: each costs the memory of all tensors between submodels."""


def requests_in_flight(reported: int, devices: int, submodels: int) -> int:
    """The number of requests to keep in flight for the throughput of a model that HETERO runs; at least ``reported``.

    A request is in one submodel at a time. HETERO reports what the submodel that asks for most asks for, which is 1 for
    a device with one stream: the other devices would wait. Three requests for each device keep all of them busy (one
    runs, one waits, one is with the program, which reads results and sets inputs). Two for each submodel (one runs, one
    waits) let all of them work where submodels of one device have streams of their own, as those of CPU devices have.
    """
    return max(reported, PER_DEVICE * devices, min(PER_SUBMODEL * submodels, MOST)) if devices > 1 else reported
