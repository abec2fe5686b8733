"""Writes a copy of an exported folder with some models replaced, atomically.

The copy is made in a temporary folder beside its place and renamed. It shares only the data of weights with the source,
by hard links; files that users edit are copied.

A replaced model is made from the model in the source, and mostly has the same weights. A constant is mapped if its data
in memory is a mapped part of the source's .bin file. Large mapped constants are not written again: the model is saved
with placeholders, constants of zeros, and then the .xml gets the offsets of the data in the old .bin.
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
"""Name of the record of written files, with digests of those that users edit.

A folder with this record may be replaced, unless something was added to it or edited since.
"""

# Folders that optimum-intel and openvino.genai make for the models that they run; they do not belong to other models.
_CACHES = ("model_cache",)

# Suffixes of data that nobody edits, which is shared if the file system supports it.
_LINKED = (".bin", ".safetensors", ".gguf")

# Bytes of a constant above which a placeholder is written for it, as its data is in the old file already.
_LARGE = 1 << 16

# Runtime information that placeholders may lack, because no file has it: affinities, a constant's place in its file,
# marks of folding, and names of fused nodes.
_EXPENDABLE_INFO = frozenset({"affinity", "WeightlessCacheAttribute_0", "can_be_folded", "fused_names_0"})

_MAPPED = "ov_hsdag mapped "
"""Prefix of a placeholder's name; the rest is a number."""

# Share of new weights, relative to the old file, above which the .bin stays as OpenVINO wrote it.
_MOST_NEW_SHARE = 0.5

_FIRST_COMPARED_BYTES = 64  # bytes that are compared first, which is quicker than comparing whole constants


def check_folder_output(output: Path, source: Path) -> None:
    """Checks that a folder can be written, and would replace only an empty folder or one that `write_folder` wrote.

    It may not be the source or inside of it, and the source may not have anything that cannot be copied. The check
    leaves nothing behind.

    Args:
        output: the folder to write.
        source: the folder of which it will be a copy.

    Raises:
        UserError: a check fails.
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
        if os.path.ismount(target):  # a mount point cannot be renamed
            raise UserError(f"cannot write '{output}': a file system is mounted there; name a folder in it")
        directory = refuse_impossible(target)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if target.exists():
            _refuse_foreign(target, output)


def write_folder(
    output: Path, source: Path, models: Mapping[str, tuple[ov.Model, bool]], *, hard_links: bool = True
) -> dict[str, bool]:
    """Writes a copy of a folder with other models in it.

    Hidden files, caches of models, and folders that this function wrote are left out.

    Args:
        output: the folder to write; see :func:`check_folder_output`.
        source: the exported folder.
        models: by the path of an .xml file in the source, the model that takes its place, and whether its weights are
            compressed to FP16 as in openvino.save_model.
        hard_links: whether to share files of weights with the source, if the file system supports it.

    Returns:
        By the keys of `models`, whether the .bin is the same file as that of the source (a hard link).

    Raises:
        UserError: the folder cannot be written, see :func:`check_folder_output`.
        RunError: OpenVINO cannot save a model.
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
            written_files = {new / name for xml in models for name in (xml, Path(xml).with_suffix(".bin"))}
            _copy_others(source, new, written_files, hard_links)
            files = sorted(path.relative_to(new).as_posix() for path in _files(new))
            digests = {name: file_digest(new / name) for name in files if not name.endswith(_LINKED)}
            record = {"version": 1, "files": files, "digests": digests}
            (new / MARKER).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            for path in _files(new):
                if path.stat().st_nlink == 1:  # shared files are on the disk already
                    sync_file(path)
            _exchange(new, target, output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return shared


def _refuse_foreign(target: Path, shown: Path) -> None:
    """Raises UserError if a folder has files that `write_folder` did not write, or that were changed since.

    Args:
        target: the folder.
        shown: the user's name of it, for messages.
    """
    present_files = {path.relative_to(target).as_posix() for path in _files(target)}
    if not present_files:
        return
    try:
        record = read_json(target / MARKER, TABLES)
        recorded_files, digests = (
            {MARKER, *record["files"]},
            dict(record.get("digests", {})),
        )  # without digests in older folders
    except (OSError, ValueError, KeyError, TypeError):
        raise refused(shown, "it is there already, and ov-hsdag did not write it") from None
    foreign = sorted(present_files - recorded_files)
    if foreign:
        raise refused(shown, f"it holds '{foreign[0]}', which ov-hsdag did not write")
    changed = sorted(name for name in present_files & digests.keys() if file_digest(target / name) != digests[name])
    if changed:
        raise refused(shown, f"its '{changed[0]}' was changed since ov-hsdag wrote it")


def _files(folder: Path) -> Iterator[Path]:
    """Yields everything in a folder that is not a folder, at any depth, without caches."""
    for directory, names, files in os.walk(folder):
        linked = [name for name in names if (Path(directory) / name).is_symlink()]
        names[:] = [name for name in names if name not in (*_CACHES, *linked)]
        yield from (Path(directory) / name for name in (*files, *linked))


def _entries_to_copy(source: Path) -> Iterator[Path]:
    """Yields the entries of a folder that are copied; folders are not descended into."""
    for entry in sorted(source.iterdir()):
        if entry.name.startswith(".") or entry.name in (MARKER, *_CACHES):
            continue
        if not entry.is_dir() or not (entry / MARKER).exists():
            yield entry


def _refuse_uncopyable(source: Path) -> None:
    """Raises UserError if a folder, at any depth, has an entry that cannot be copied.

    Such are links to nothing or to a folder around them, pipes and devices, and unreadable files.
    """
    real = Path(os.path.realpath(source))
    try:
        for entry in _entries_to_copy(source):
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


def _copy_others(source: Path, new: Path, written_files: Collection[Path], hard_links: bool) -> None:
    """Copies the other entries of a folder into the new one, at any depth. Links are followed.

    Args:
        source: the folder.
        new: the new folder.
        written_files: files that are in the new folder already, which are not copied.
        hard_links: whether files of weights may be linked.
    """
    for entry in _entries_to_copy(source):
        copy = new / entry.name
        if entry.is_dir():
            copy.mkdir(exist_ok=True)
            _copy_others(entry, copy, written_files, hard_links)
        elif copy not in written_files:
            _copy(entry, copy, hard_links)


def _copy(source: Path, copy: Path, hard_links: bool) -> bool:
    """Copies a file, or links it if it holds data of weights. Returns whether the two are one file."""
    if hard_links and source.suffix in _LINKED:
        with contextlib.suppress(OSError):  # on another file system, one without links, or for another owner's file
            os.link(os.path.realpath(source), copy)
            return True
    shutil.copyfile(source, copy)
    shutil.copystat(source, copy)
    return False


def _exchange(new: Path, target: Path, shown: Path) -> None:
    """Renames the new folder to its final name, and removes the folder that had this name.

    Args:
        new: the new folder under its temporary name.
        target: the final name.
        shown: the user's name of it, for messages.

    Raises:
        UserError: the old folder has files that `write_folder` did not write.
        OSError: a folder cannot be renamed; the old one is in its place then.
    """
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


# A constant with data in the .bin that the model was read from: its friendly name, and the data's offset in bytes.
_Mapped = tuple[str, int]


def _write_model(model: ov.Model, xml: Path, old_xml: Path, compress: bool, shown: Path, hard_links: bool) -> bool:
    """Saves a model that shares weights with the model that it was made from, see `_share_weights`.

    Gigabytes that are in the old file already are not written. Placeholders stand for them until their offsets are in
    the .xml.

    Args:
        model: the model.
        xml: the .xml file to write.
        old_xml: file of the model that it was made from.
        compress: whether f32 weights are stored as f16.
        shown: the user's name of the .xml, for messages.
        hard_links: whether files may be linked.

    Returns:
        Whether the .bin is the same file as that of the old model.

    Raises:
        UserError: a file cannot be written.
        RunError: OpenVINO cannot save the model.
    """
    zeros = np.zeros(max(map(_large, model.get_ops()), default=0), np.uint8)  # must outlive `light`, which refers to it
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
    """Copies a model, with placeholders in place of large constants that are mapped from `old_bin`.

    OpenVINO writes equal constants once, so all placeholders of one size take the place of a single constant in the
    file. If the system does not report mapped files, nothing is replaced.

    Args:
        model: the model.
        old_bin: file with the weights of the model that it was made from.
        compress: whether f32 weights will be stored as f16; then their data is not in the old file.
        zeros: zeros of the size of the largest constant, uint8. The copy refers to this memory.

    Returns:
        (copy, replaced): the copy, or the model itself if the file is not mapped; and the replaced constants, by the
        names of their placeholders.
    """
    areas = _mapped_areas(old_bin)
    if not areas:
        return model, {}
    replaced: dict[str, _Mapped] = {}
    copy = model.clone()
    for node in copy.get_ops():
        size, element = _large(node), node.get_element_type() if node.get_output_size() == 1 else None
        if not size or element is None or (compress and element in (ov.Type.f32, ov.Type.f64)):
            continue
        if set(node.get_rt_info()) - _EXPENDABLE_INFO:
            continue  # Python cannot copy its runtime information for plugins
        address = node.data.__array_interface__["data"][0]
        offset_in_file = next(
            (address - begin + offset for begin, end, offset in areas if begin <= address < end), None
        )
        if offset_in_file is None:
            continue
        name = f"{_MAPPED}{len(replaced)}"
        zero = op.Constant(ov.Tensor(zeros[:size], node.get_output_shape(0), element), True)
        zero.set_friendly_name(name)
        node.output(0).replace(zero.output(0))  # replaces its tensor names, too
        replaced[name] = node.get_friendly_name(), offset_in_file
    return copy, replaced


def _large(node: ov.Node) -> int:
    """Returns the bytes of a constant with more than `_LARGE` bytes; 0 for all other nodes."""
    size = int(node.get_byte_size()) if node.get_type_name() == "Constant" else 0
    return size if size > _LARGE else 0


def _mapped_areas(path: Path) -> list[tuple[int, int, int]]:
    """Lists the memory areas of this process that are mapped from a file.

    Returns:
        (begin, end, offset) of each area: addresses, and the offset in the file in bytes; [] where none are reported.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        real = os.path.realpath(path)
    except OSError:
        return []
    areas = []
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5] == real:
            begin, end = (int(one, 16) for one in parts[0].split("-"))
            areas.append((begin, end, int(parts[2], 16)))
    return areas


def _share_weights(new_xml: Path, old_xml: Path, hard_links: bool, mapped: Mapping[str, _Mapped]) -> bool | None:
    """Lets a saved model use the .bin of the model that it was made from.

    Placing keeps weights, but OpenVINO's transformations add some small constants and change the order of all. So
    offsets in the .xml become those of equal data in the old .bin. If all data is there, that file is linked. Otherwise
    the new .bin is the old one, whose blocks the file system may share, with the new constants behind it.

    Args:
        new_xml: the saved model.
        old_xml: the model that it was made from.
        hard_links: whether files may be linked.
        mapped: the constants that placeholders stand for, by the placeholders' names.

    Returns:
        Whether both .bin files are one file (a hard link); None if the weights cannot be shared. The saved files are
        then as they were.
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
        """Maps name and offset of a saved constant to those with the old .bin; new data goes to `added`."""
        if name in by_name:
            return by_name[name]
        if (at, size) not in places:
            data = np.fromfile(new_bin, np.uint8, size, offset=at)
            old_offset = _offset_of_equal_data(data, old, candidates.get(size, ()))
            places[at, size] = len(old) + len(added) if old_offset is None else old_offset
            if old_offset is None:
                added.extend(data.tobytes())
        return name, places[at, size]

    try:
        text = rewritten_constants(new_xml.read_bytes(), in_old_bin)
    except RunError:
        return None
    if len(added) > _MOST_NEW_SHARE * len(old):
        return None
    new_bin.unlink()
    shared = not added and _copy(old_bin, new_bin, hard_links)
    if added:
        _copy_sharing_blocks(old_bin, new_bin)
        with open(new_bin, "ab") as file:
            file.write(added)
    new_xml.write_bytes(text)
    return shared


def _offset_of_equal_data(data: NDArray[np.uint8], old: NDArray[np.uint8], candidates: Collection[int]) -> int | None:
    """Finds the same data in the old file.

    Args:
        data: the data, uint8.
        old: content of the old file, uint8.
        candidates: offsets in the old file at which constants of the same size begin.

    Returns:
        The first of these offsets with equal data; None if there is none.
    """
    for at in candidates:
        same = old[at : at + len(data)]
        if np.array_equal(data[:_FIRST_COMPARED_BYTES], same[:_FIRST_COMPARED_BYTES]) and np.array_equal(data, same):
            return at
    return None


def _copy_sharing_blocks(source: Path, copy: Path) -> None:
    """Copies a file; on file systems that can (Btrfs, XFS), both files share their blocks until one is changed."""
    with open(source, "rb") as old, open(copy, "xb") as new:
        remaining = os.fstat(old.fileno()).st_size
        try:
            while remaining > 0:
                done = os.copy_file_range(old.fileno(), new.fileno(), remaining)
                if not done:
                    break
                remaining -= done
        except (OSError, AttributeError):  # not on this system, or not from one file system to another
            old.seek(0)
            new.seek(0)
            shutil.copyfileobj(old, new, 1 << 20)
