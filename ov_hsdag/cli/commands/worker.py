"""`ov-hsdag worker`: lend this machine's devices to a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, remote
from ov_hsdag.cli.command import Command
from ov_hsdag.devices.virtual import new_core

Address = Annotated[str, typer.Option("--ray", metavar="ADDRESS", help="The head of the Ray cluster, as HOST:6379.")]
Cores = Annotated[
    int,
    typer.Option(
        "--cores", min=0, metavar="N", help="Cores for `pretrain --ray` besides; they disturb what is measured."
    ),
]


def worker(ray: Address, cores: Cores = 0, as_json: common.Json = False) -> None:
    """Let commands with --ray measure on the devices of this machine, one at a time, until Ctrl-C.

    Needs the extra `ray`. Prints what it announces: the devices that OpenVINO sees here, virtual ones included.

    Args:
        ray: address of the head of the Ray cluster.
        cores: cores that this machine also offers to `pretrain --ray`, beside measuring.
        as_json: print JSON.
    """
    with console.result(as_json) as show:
        labels = remote.announcement(new_core())
        lines = [f"{name}: {value}" for name, value in labels.items()]
        show({"ray": ray, "labels": labels}, "\n".join([f"joining {ray} with", *lines]))
        remote.serve(ray, labels, cores)


COMMAND = Command(worker, position=170, example="ov-hsdag worker --ray head.local:6379")
