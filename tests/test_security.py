"""The page on security: each sentence that promises something names the tests that hold it to that."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from packer import PackedBatchDataset, convert_images, convert_table, open_pack, report, verify_pack

ROOT = Path(__file__).parents[1]

# Beginning of a sentence -> tests; none: it says what is not promised, or what to do.
SENTENCES: dict[str, list[str]] = {
    "For whoever opens packs": [],
    "Opening, loading, verifying": ["format/test_strangers.py::test_objects_are_never_read"],
    "A pack holds numbers": ["format/test_strangers.py::test_objects_are_never_read"],
    "Nothing is unpickled": ["format/test_strangers.py::test_arrays_of_objects_are_never_unpickled"],
    "Lengths, offsets and shapes": ["format/test_fuzz.py::test_mutations_end_well"],
    "A header cannot make packer read": [
        "format/test_strangers.py::test_arrays_in_other_files_are_refused_unread",
        "format/test_strangers.py::test_neither_index_nor_shard_leads_outside",
        "format/test_fuzz.py::test_mutations_end_well",
        "codecs/test_block_codecs.py::test_bombs_take_no_memory",
    ],
    "Memory for raw rows": [
        "format/test_header_forms.py::test_the_unpacked_size_of_rows_is_bounded_by_their_bytes"
    ],
    "`tools/fuzz_packs.py` tries": ["format/test_fuzz.py::test_mutations_end_well"],
    "Exported files stay": [
        "convert/test_export.py::test_hostile_keys_are_refused",
        "convert/test_export.py::test_a_key_that_passes_stays_below_its_folder",
    ],
    "File names and `labels.csv`": [
        "convert/test_export.py::test_names_that_a_terminal_or_a_spreadsheet_would_obey"
    ],
    "HDF5's library sees": [
        "format/test_strangers.py::test_the_process_that_asks_hdf5_imports_nothing_from_the_current_folder"
    ],
    "A hostile pack can still": [],
    "**Lie.** Checksums": [],
    "Compare a SHA-256": [],
    "**Take time": [],
    "**Attack decoders**": [],
    "Keep them up to date": [],
    "Archives are never extracted": [
        "test_architecture.py::test_every_file_is_created_in_one_place",
        "inputs/test_image_archives.py::test_names_that_lead_out_are_refused_for_images_only",
        "inputs/test_image_archives.py::test_a_member_that_grows_a_hundredfold_is_not_inflated",
    ],
    "Decoders are told": [
        "pixels/test_image_decoder.py::test_too_many_pixels_are_refused",
        "pixels/test_image_decoder.py::test_a_bomb_is_refused_undecoded",
    ],
    "CSV is never evaluated": [
        "test_security.py::test_cells_are_never_evaluated",
        "format/test_strangers.py::test_arrays_of_objects_are_never_unpickled",
    ],
    "XML with a document type": [
        "inputs/test_voc_annotations.py::test_xml_is_read_safely",
        "inputs/test_yolo_labels.py::test_names_stay_text",
    ],
    "Parquet, TIFF": [],
    "In `/tmp`, in the folder": [],
    "packer creates each file exclusively": [
        "test_architecture.py::test_every_file_is_created_in_one_place",
        "format/test_file_io.py::test_nothing_planted_is_taken_for_a_new_file",
        "format/test_file_io.py::test_what_is_planted_is_replaced_by_a_new_file",
    ],
    "Unfinished work and caches are": [
        "writing/test_working_folder.py::test_work_is_private_and_a_pack_as_the_umask_says",
        "filling/test_remote_cache.py::test_the_files_of_a_cache_are_open_to_its_users_alone",
    ],
    "A finished pack has the modes": [
        "writing/test_working_folder.py::test_work_is_private_and_a_pack_as_the_umask_says",
        "convert/test_repacking.py::test_appended_shards_are_as_readable_as_others",
    ],
    "A working folder (`OUT.packing`)": [
        "writing/test_working_folder.py::test_the_folder_of_another_user_is_refused",
        "convert/test_repacking.py::test_work_of_another_user_is_not_moved_into_a_pack",
    ],
    "Otherwise it is refused by name": [
        "writing/test_working_folder.py"
        "::test_a_folder_in_which_others_wrote_is_refused_before_its_journal_is_read"
    ],
    "A pack is changed in place": [
        "convert/test_sealing.py::test_links_in_a_folder_to_seal_are_refused",
        "convert/test_repacking.py::test_links_in_a_pack_to_append_to_are_refused",
        "format/test_file_io.py::test_what_others_could_have_put_there_is_found",
    ],
    "This holds for root": ["format/test_file_io.py::test_files_of_another_user_are_found"],
    "A report, a contact sheet": ["format/test_file_io.py::test_a_file_of_the_user_replaces_what_is_planted"],
    "`/dev/stdout` and": ["format/test_file_io.py::test_open_files_are_written_to_by_their_names"],
    "A `cache=` folder is refused": [
        "filling/test_remote_cache.py::test_links_in_a_cache_are_refused",
        "filling/test_remote_cache.py::test_a_cache_that_others_can_write_to_is_shared_on_request",
    ],
    "A group shares one": [
        "filling/test_remote_cache.py::test_rows_of_a_shared_cache_are_compared_before_their_use"
    ],
    "packer cannot prevent these": [],
    "Users who may rename your files": [],
    "Members of the group of a shared cache": [],
    "File systems without owners": [],
    "`transform=` and the data set": [],
    '`augment="..."` is parsed': [
        "augment/test_transform_text.py::test_nothing_else_is_understood_and_nothing_runs"
    ],
    "Processes of one user": [
        "load/caches/test_row_memory.py::test_the_folder_is_for_its_user_alone",
        "load/caches/test_row_memory.py::test_a_folder_that_is_not_ours_alone_is_refused",
        "filling/test_filling_pack.py::test_rows_are_read_while_others_are_being_made",
        "filling/test_filling_pack.py::test_what_others_planted_is_refused_unread",
    ],
    "Of one that sends more": [
        "remote/test_access.py::test_reading_stops_at_the_requested_bytes",
        "remote/test_access.py::test_redirects_end_after_ten",
    ],
    "On Linux the memory of the": [
        "remote/test_access.py::test_the_helper_s_memory_is_limited_by_what_is_requested"
    ],
    "Keys of stores come": [
        "remote/test_credentials.py::test_variables_win",
        "remote/test_access.py::test_another_host_does_not_get_the_session_token",
    ],
    "Passwords in URLs": ["remote/test_access.py::test_what_cannot_be_read_is_one_sentence"],
    "packer sends nothing": ["test_security.py::test_nothing_is_sent_to_anybody"],
    "A server that sends less": [
        "remote/test_access.py::test_a_server_that_sends_a_byte_now_and_then_is_left"
    ],
    "No process that packer starts": ["test_starting.py::test_no_process_imports_from_the_current_folder"],
    "Write to the maintainers": [],
    "They answer": [],
}


def sentences() -> list[str]:
    """The sentences and list items of the page, on one line each."""
    blocks, lines = [], (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("* ") or not line or line.startswith("#"):
            blocks.append("")
        if not line.startswith("#"):
            blocks[-1] += " " + line.removeprefix("* ").strip()
    return [s for block in blocks for s in re.split(r"(?<=[.:])\s+(?=[A-Zp`])", block.strip()) if s]


def test_every_sentence_is_in_the_table_and_every_entry_is_used() -> None:
    unused, unknown = set(SENTENCES), []
    for sentence in sentences():
        found = {begin for begin in SENTENCES if sentence.startswith(begin)}
        unused -= found
        unknown += [] if found else [sentence]
    assert (unknown, unused) == ([], set())


def test_the_tests_are_there() -> None:
    for test in {test for tests in SENTENCES.values() for test in tests}:
        file, _, name = test.partition("::")
        parsed = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}, test


def test_cells_are_never_evaluated(tmp_path: Path) -> None:
    """They are texts, whatever they say."""
    cells = ["=1+1", "__import__('os').abort()", "=cmd|'/c calc'!A0"]
    (tmp_path / "t.csv").write_text("a,n,y\n" + "".join(f"{c},{n},0\n" for n, c in enumerate(cells * 5)))
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y")
    table = open_pack(tmp_path / "t.h5").header.table
    assert all(cell in repr(table) for cell in ("=1+1", "=cmd|"))


def test_nothing_is_sent_to_anybody(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(self: socket.socket, address: Any) -> None:
        pytest.fail(f"connects to {address}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    convert_images(photo_folder, tmp_path / "p.h5", size=16, workers=1)
    assert verify_pack(tmp_path / "p.h5").ok
    with PackedBatchDataset(tmp_path / "p.h5", 8, output="numpy") as batches:
        assert len(list(batches)) == 3
    report(tmp_path / "p.h5", tmp_path / "p.html")
