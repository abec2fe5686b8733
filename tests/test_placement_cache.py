"""Kept placements: what an entry depends on, who may write it, and that a damaged one counts as none."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import openvino as ov
import pytest
from openvino import opset13 as op

from ov_hsdag.model.names import name_generated
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing import placement_cache
from ov_hsdag.placing.placement_cache import CachedModel, CacheEntry, PlacementCache, cache_key, model_digest
from tests.graphs import convolutions

PLACEMENT = Placement(("CPU_A", "CPU_B"), {"a": "CPU_A", "b": "CPU_B"}, predicted={"latency_us": 5.0, "submodels": 2})


def entry(key: str = "k", **changes: object) -> CacheEntry:
    model = CachedModel("m", 2, "/models/m.xml", {"x": "[1,?]"})
    made = CacheEntry(key, ("CPU_A", "CPU_B"), PLACEMENT, model, {"CPU_A": 100}, {}, 0.5)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path) -> PlacementCache:
    made = PlacementCache.in_folder(tmp_path)
    assert made is not None
    return made


def test_an_entry_is_read_back_as_it_was_saved(cache: PlacementCache) -> None:
    cache.save(entry())
    assert cache.load("k") == entry()
    assert cache.load("another") is None


@pytest.mark.parametrize("damage", ["cut", "empty", "no JSON", "a list", "no device", "another version", "wrong types"])
def test_a_damaged_entry_is_a_value_error(cache: PlacementCache, damage: str) -> None:
    cache.save(entry())
    path = cache.path("k")
    text = path.read_text()
    value = json.loads(text)
    value["placement"]["default"] = "CPU_C"
    damaged = {
        "cut": text[: len(text) // 2],
        "empty": "",
        "no JSON": "placement",
        "a list": "[]",
        "no device": json.dumps(value),
        "another version": text.replace('"version": 1', '"version": 99', 1),
        "wrong types": text.replace('"limits": {', '"limits": {"CPU_B": "much", '),
    }[damage]
    path.write_text(damaged)
    with pytest.raises(ValueError):
        cache.load("k")
    assert cache.entries() == []


def test_the_digest_is_of_structure_shapes_and_names_alone() -> None:
    def digest(model: ov.Model) -> str:
        name_generated(model, of_copy=True)
        return model_digest(Nodes(model))

    def made(size: int = 4, name: str = "y", value: float = 1.0) -> ov.Model:
        x = op.parameter([1, size], ov.Type.f32, name="x")
        return ov.Model([op.result(op.add(x, op.constant([[value] * size], ov.Type.f32, name="c"), name=name))], [x])

    assert digest(made()) == digest(made(value=2.0)) == digest(made().clone())
    assert len({digest(made()), digest(made(size=5)), digest(made(name="z")), digest(convolutions())}) == 4


def test_every_part_of_the_key_counts() -> None:
    device = {"name": "CPU_A", "full_name": "a CPU", "memory": 5}
    keys = {
        cache_key("m", [device], {"objective": "latency"}),
        cache_key("n", [device], {"objective": "latency"}),
        cache_key("m", [device], {"objective": "throughput"}),
        cache_key("m", [{**device, "memory": 6}], {"objective": "latency"}),
        cache_key("m", [{**device, "full_name": "another"}], {"objective": "latency"}),
        cache_key("m", [device, device], {"objective": "latency"}),
    }
    assert len(keys) == 6
    assert cache_key("m", [device], {"objective": "latency"}) in keys


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    inside = tmp_path / "ov_hsdag" / "placements"
    inside.mkdir(parents=True)
    for folder in (inside, inside.parent, tmp_path):
        before = folder.stat().st_mode
        folder.chmod(0o777)
        assert PlacementCache.in_folder(tmp_path) is None
        folder.chmod(before)
    tmp_path.chmod(0o1777)  # as /tmp: what others make there, they cannot replace
    assert PlacementCache.in_folder(tmp_path) is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "linked"
    link.mkdir()
    (link / "ov_hsdag").symlink_to(elsewhere)
    assert PlacementCache.in_folder(link) is None


def test_new_folders_belong_to_the_user_alone(cache: PlacementCache) -> None:
    if hasattr(os, "getuid"):
        assert cache.folder.stat().st_mode & 0o077 == 0


def test_the_least_recently_used_entries_go_first(cache: PlacementCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_cache, "MOST_ENTRIES", 3)
    for number, key in enumerate("abc"):
        cache.save(entry(key))
        os.utime(cache.path(key), (number, number))
    assert cache.load("a") is not None  # used now
    cache.save(entry("d"))
    assert {path.name[0] for path in cache.folder.glob("*.json")} == {"a", "c", "d"}


def test_bytes_are_bounded_and_the_newest_entry_stays(cache: PlacementCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.save(entry("a"))
    monkeypatch.setattr(placement_cache, "MOST_BYTES", 10)
    cache.save(entry("b"))
    assert [path.name[0] for path in cache.folder.glob("*.json")] == ["b"]


def test_clear_leaves_nothing(cache: PlacementCache) -> None:
    cache.save(entry("a"))
    with cache.locked("a"):
        pass
    assert cache.clear() == 1
    assert list(cache.folder.iterdir()) == []


def test_a_lock_is_held_by_one_thread_at_a_time(cache: PlacementCache) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with cache.locked("k"):
            with lock:
                inside += 1
                most = max(most, inside)
            threading.Event().wait(0.005)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_an_entry_that_is_locked_for_long_is_waited_for_no_longer(
    cache: PlacementCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_cache, "LOCK_SECONDS", 0.0)
    with cache.locked("k"), cache.locked("k"):
        pass


@pytest.mark.parametrize(("variable", "kept"), [("0", False), ("", True)])
def test_the_environment_says_whether_placements_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, kept: bool
) -> None:
    monkeypatch.setenv(placement_cache.FOLDER_VARIABLE, variable)
    cache = PlacementCache.default(str(tmp_path))
    assert (cache is not None) == kept
    if cache is not None:
        assert cache.folder.is_relative_to(tmp_path)
