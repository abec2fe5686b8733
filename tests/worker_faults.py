"""What can happen to a worker: faults for `ov_hsdag.measuring.worker`, functions of a point and what is at hand."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def at(point: str, act: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    return lambda where, value: act(value) if where == point else value


def kill(value: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(value: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(value: Any) -> None:
    time.sleep(3600)


def refuse(value: Any) -> None:
    raise RuntimeError("Exception from src/plugin.cpp:12:\nno kernel for this")


def leave(value: Any) -> None:
    os._exit(0)


def without_memory(value: Any) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def one_nan(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[0].flat[0] = np.nan
    return arrays


def other(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[0].flat[0] += 0.5 * np.abs(arrays[0]).max()
    return arrays


def garbage(answer: dict[str, Any]) -> Any:
    return b"[ INFO ] loading kernels\n" if "rate" in answer else answer


def odd_rate(answer: dict[str, Any]) -> Any:
    return {"rate": None} if "rate" in answer else answer


killed_at_start = at("start", kill)
killed_compiling = at("compile", kill)
killed_running = at("turn", kill)
hangs_compiling = at("compile", hang)
hangs_running = at("turn", hang)
stopped_running = at("turn", stop)
refuses_to_compile = at("compile", refuse)
refuses_to_run = at("turn", refuse)
out_of_memory = at("compile", without_memory)
ends_early = at("turn", leave)
nan = at("outputs", one_nan)
wrong = at("outputs", other)
talks_garbage = at("answer", garbage)
answers_oddly = at("answer", odd_rate)
