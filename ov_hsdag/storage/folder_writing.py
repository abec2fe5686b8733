"""Write a copy of an exported folder in which some models are others, whole or not at all.

The copy is made in a temporary folder beside its place and renamed. What it shares with the source is the data of
weights alone, by hard links: files that people edit are copied.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.storage.files import refuse_impossible, remove_leftovers, save_model, sync_file, temporary_name, writing
from ov_hsdag.storage.ir_text import constants_of, rewritten_constants
from ov_hsdag.storage.overwriting import refused
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import op, ov
from ov_hsdag.utils.reading import TABLES, file_digest, read_json

MARKER = "ov_hsdag_folder.json"
"""Lists the files that were written, with digests of those that people edit: a folder that has it, and nothing that was
added or edited since, may be replaced."""

# Made by optimum-intel and openvino.genai in the folders that they run, of the models in them: of no use for others.
_CACHES = ("model_cache",)

# Data that nobody edits. They are shared where the file system can.
_LINKED = (".bin", ".safetensors", ".gguf")

_LARGE = 1 << 16  # constants of more bytes are not written only to be found again

# What placeholders may lack, as no file has it: affinities, a constant's place in its file, marks of folding, names.
_NEEDLESS = frozenset({"affinity", "WeightlessCacheAttribute_0", "can_be_folded", "fused_names_0"})

_MAPPED = "ov_hsdag mapped "
"""Begins the name of a placeholder; the rest is a number."""

# Where more than this share of the weights is new, they are written as OpenVINO wrote them.
_MOST_NEW = 0.5

_HEAD = 64  # bytes that are compared first


def check_folder_output(output: Path, source: Path) -> None:
    """Raise UserError where a folder cannot be written, or would replace anything but an empty one or one written so.

    Neither may it be the source or inside that, nor may the source hold what cannot be copied. Leaves nothing behind.
    """
    _refuse_uncopyable(source)
    with writing(output):
        target = Path(os.path.realpath(output))
        inside = Path(os.path.realpath(source))
        if target == inside:
            raise refused(output, "it is the input")
        if inside in target.parents:
            raise refused(output, "it is inside the input")
        if target.exists() and not target.is_dir():
            raise UserError(f"cannot write '{output}': it is a file, and the output of a folder is a folder")
        if os.path.ismount(target):  # which cannot be renamed
            raise UserError(f"cannot write '{output}': a file system is mounted there; name a folder in it")
        directory = refuse_impossible(target)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if target.exists():
            _refuse_foreign(target, output)


def write_folder(
    output: Path, source: Path, models: Mapping[str, tuple[ov.Model, bool]], *, hard_links: bool = True
) -> dict[str, bool]:
    """Write a copy of a folder with other models in it: all but hidden files, caches of models and folders written so.

    output: The folder to write; see :func:`check_folder_output`. models: By the path of the .xml file in the source:
    what takes its place, and whether its weights are compressed to FP16 as in openvino.save_model. hard_links: Share
    files of weights with the source, where the file system can. Returns for each of the models whether its .bin is the
    file of the source.
    """
    check_folder_output(output, source)
    target = Path(os.path.realpath(output))
    with writing(output):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        new = temporary_name(target)
        new.mkdir()
    try:
        shared = {}
        for name, (model, compress) in models.items():
            xml = new / name
            xml.parent.mkdir(parents=True, exist_ok=True)
            shared[name] = _write_model(model, xml, source / name, compress, output / name, hard_links)
        with writing(output):
            own = {new / name for xml in models for name in (xml, Path(xml).with_suffix(".bin"))}
            _copy_others(source, new, own, hard_links)
            files = sorted(path.relative_to(new).as_posix() for path in _files(new))
            digests = {name: file_digest(new / name) for name in files if not name.endswith(_LINKED)}
            record = {"version": 1, "files": files, "digests": digests}
            (new / MARKER).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            for path in _files(new):
                if path.stat().st_nlink == 1:  # what is shared is on the disk already
                    sync_file(path)
            _exchange(new, target, output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return shared


def _refuse_foreign(target: Path, shown: Path) -> None:
    """Raise UserError where a folder holds what was not written so."""
    there = {path.relative_to(target).as_posix() for path in _files(target)}
    if not there:
        return
    try:
        record = read_json(target / MARKER, TABLES)
        ours, digests = {MARKER, *record["files"]}, dict(record.get("digests", {}))  # without digests in older folders
    except (OSError, ValueError, KeyError, TypeError):
        raise refused(shown, "it is there already, and ov-hsdag did not write it") from None
    foreign = sorted(there - ours)
    if foreign:
        raise refused(shown, f"it holds '{foreign[0]}', which ov-hsdag did not write")
    changed = sorted(name for name in there & digests.keys() if file_digest(target / name) != digests[name])
    if changed:
        raise refused(shown, f"its '{changed[0]}' was changed since ov-hsdag wrote it")


def _files(folder: Path) -> Iterator[Path]:
    """All that is no folder in a folder, at any depth, caches left out."""
    for directory, names, files in os.walk(folder):
        linked = [name for name in names if (Path(directory) / name).is_symlink()]
        names[:] = [name for name in names if name not in (*_CACHES, *linked)]
        yield from (Path(directory) / name for name in (*files, *linked))


def _copied(source: Path) -> Iterator[Path]:
    """What of a folder is copied, folders by their own names."""
    for entry in sorted(source.iterdir()):
        if entry.name.startswith(".") or entry.name in (MARKER, *_CACHES):
            continue
        if not entry.is_dir() or not (entry / MARKER).exists():
            yield entry


def _refuse_uncopyable(source: Path) -> None:
    """Raise UserError where a folder holds something that cannot be copied, and name it."""
    real = Path(os.path.realpath(source))
    try:
        for entry in _copied(source):
            if entry.is_dir():
                if Path(os.path.realpath(entry)) in (real, *real.parents):
                    raise UserError(f"cannot copy '{entry}': it is a link to a folder that it is in")
                _refuse_uncopyable(entry)
            elif not entry.is_file():
                kind = "a link to nothing" if entry.is_symlink() else "neither a file nor a folder"
                raise UserError(f"cannot copy '{entry}': it is {kind}; move it out of the folder")
            elif not os.access(entry, os.R_OK):
                raise UserError(f"cannot copy '{entry}': {os.strerror(errno.EACCES)}")
    except OSError as error:
        raise UserError(f"cannot copy '{source}': {error.strerror or error}") from None


def _copy_others(source: Path, new: Path, own: Collection[Path], hard_links: bool) -> None:
    """Copy what is not there yet, links followed. own: files of the copy that are not copied."""
    for entry in _copied(source):
        copy = new / entry.name
        if entry.is_dir():
            copy.mkdir(exist_ok=True)
            _copy_others(entry, copy, own, hard_links)
        elif copy not in own:
            _copy(entry, copy, hard_links)


def _copy(source: Path, copy: Path, hard_links: bool) -> bool:
    """Copy a file, or link it where it holds data of weights. Returns whether the two are one file."""
    if hard_links and source.suffix in _LINKED:
        with contextlib.suppress(OSError):  # another file system, one without links, another owner's file
            os.link(os.path.realpath(source), copy)
            return True
    shutil.copyfile(source, copy)
    shutil.copystat(source, copy)
    return False


def _exchange(new: Path, target: Path, shown: Path) -> None:
    if not target.exists():
        os.rename(new, target)
        return
    _refuse_foreign(target, shown)  # it may have changed during the work
    old = temporary_name(target)
    os.rename(target, old)
    try:
        os.rename(new, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


# A constant whose data is in the file that the model was read from: its friendly name, and where it begins there.
_Mapped = tuple[str, int]


def _write_model(model: ov.Model, xml: Path, old_xml: Path, compress: bool, shown: Path, hard_links: bool) -> bool:
    """Save a model beside weights that it shares with the one that it was made of, see `_share_weights`.

    Gigabytes that are in the old file already are not written: placeholders stand for them until the .xml says where.
    """
    zeros = np.zeros(max(map(_large, model.get_ops()), default=0), np.uint8)  # OpenVINO refers to it, and keeps it not
    light, mapped = _with_placeholders(model, old_xml.with_suffix(".bin"), compress, zeros)
    if mapped:
        save_model(light, xml, compress, shown, sync=False)
        with writing(shown):
            shared = _share_weights(xml, old_xml, hard_links, mapped)
            if shared is not None:
                return shared
            for path in (xml, xml.with_suffix(".bin")):
                path.unlink()
    save_model(model, xml, compress, shown, sync=False)
    with writing(shown):
        return bool(_share_weights(xml, old_xml, hard_links, {}))


def _with_placeholders(
    model: ov.Model, old_bin: Path, compress: bool, zeros: NDArray[np.uint8]
) -> tuple[ov.Model, dict[str, _Mapped]]:
    """A copy of a model with zeros for large constants that are mapped from `old_bin`; what they are, by their names.

    Equal constants are written once, so that all zeros of a size take the place of one. Where the system does not say
    what is mapped, there are none. The copy refers to `zeros`, as many bytes as the largest constant has.
    """
    areas = _mapped_areas(old_bin)
    if not areas:
        return model, {}
    found: dict[str, _Mapped] = {}
    copy = model.clone()
    for node in copy.get_ops():
        size, element = _large(node), node.get_element_type() if node.get_output_size() == 1 else None
        if not size or element is None or (compress and element in (ov.Type.f32, ov.Type.f64)):
            continue
        if set(node.get_rt_info()) - _NEEDLESS:
            continue  # Python cannot copy its runtime information for plugins
        address = node.data.__array_interface__["data"][0]
        at = next((address - begin + offset for begin, end, offset in areas if begin <= address < end), None)
        if at is None:
            continue
        name = f"{_MAPPED}{len(found)}"
        zero = op.Constant(ov.Tensor(zeros[:size], node.get_output_shape(0), element), True)
        zero.set_friendly_name(name)
        node.output(0).replace(zero.output(0))  # its names, too
        found[name] = node.get_friendly_name(), at
    return copy, found


def _large(node: ov.Node) -> int:
    """Bytes of a large constant, 0 for all other nodes."""
    size = int(node.get_byte_size()) if node.get_type_name() == "Constant" else 0
    return size if size > _LARGE else 0


def _mapped_areas(path: Path) -> list[tuple[int, int, int]]:
    """Begin, end and offset in the file of memory of this process that is mapped from a file."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        real = os.path.realpath(path)
    except OSError:
        return []
    found = []
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5] == real:
            begin, end = (int(one, 16) for one in parts[0].split("-"))
            found.append((begin, end, int(parts[2], 16)))
    return found


def _share_weights(new_xml: Path, old_xml: Path, hard_links: bool, mapped: Mapping[str, _Mapped]) -> bool | None:
    """Let a saved model use the .bin of the model that it was made of: whether both are one file, None where it cannot.

    Placing keeps weights, but OpenVINO's clean-up makes some small constants, and the order of all changes: offsets in
    the .xml become those of equal data in the old .bin. Where all are there, that file is linked; else the new .bin is
    the old one, whose blocks the file system may share, with the few others behind it. mapped: placeholders, by name.
    """
    new_bin, old_bin = new_xml.with_suffix(".bin"), old_xml.with_suffix(".bin")
    if not old_bin.is_file() or not old_bin.stat().st_size or not new_bin.stat().st_size:
        return None
    old = np.memmap(old_bin, np.uint8, "r")
    by_name = {name.encode(): (escape(own).encode(), at) for name, (own, at) in mapped.items()}
    places: dict[tuple[int, int], int] = {}
    added = bytearray()
    candidates: dict[int, list[int]] = {}
    for at, size in constants_of(old_xml.read_bytes()):
        if at + size <= len(old):
            candidates.setdefault(size, []).append(at)

    def in_old_bin(name: bytes, at: int, size: int) -> tuple[bytes, int]:
        if name in by_name:
            return by_name[name]
        if (at, size) not in places:
            data = np.fromfile(new_bin, np.uint8, size, offset=at)
            found = _find(data, old, candidates.get(size, ()))
            places[at, size] = len(old) + len(added) if found is None else found
            if found is None:
                added.extend(data.tobytes())
        return name, places[at, size]

    try:
        text = rewritten_constants(new_xml.read_bytes(), in_old_bin)
    except RunError:
        return None
    if len(added) > _MOST_NEW * len(old):
        return None
    new_bin.unlink()
    shared = not added and _copy(old_bin, new_bin, hard_links)
    if added:
        _clone(old_bin, new_bin)
        with open(new_bin, "ab") as file:
            file.write(added)
    new_xml.write_bytes(text)
    return shared


def _find(data: NDArray[np.uint8], old: NDArray[np.uint8], candidates: Collection[int]) -> int | None:
    """Where equal data begins, at one of the candidates."""
    for at in candidates:
        same = old[at : at + len(data)]
        if np.array_equal(data[:_HEAD], same[:_HEAD]) and np.array_equal(data, same):
            return at
    return None


def _clone(source: Path, copy: Path) -> None:
    """Copy a file; file systems that can (Btrfs, XFS) let both share their blocks until one is written."""
    with open(source, "rb") as old, open(copy, "xb") as new:
        left = os.fstat(old.fileno()).st_size
        try:
            while left > 0:
                done = os.copy_file_range(old.fileno(), new.fileno(), left)
                if not done:
                    break
                left -= done
        except (OSError, AttributeError):  # not on this system, or not from one file system to another
            old.seek(0)
            new.seek(0)
            shutil.copyfileobj(old, new, 1 << 20)
