from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packer.convert.image_conversion import convert_images
from packer.errors import ImageError, PackerError, SourceError, UsageError
from packer.inputs.checks.examine import examine
from packer.inputs.file_names import IMAGE_EXTENSIONS
from packer.inputs.image_sources import open_source
from packer.inputs.listing import Listing
from packer.inputs.opened_source import ImageSource, SourceOptions

Tree = Callable[..., Path]
NO_LABELS = "The images are not in class folders, so the pack has no labels; pass labels= to add some."
KEYS = ["cat/1.jpg", "cat/a/2.PNG", "dog/3.jpeg"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pack(folder: str, archive: str) -> str:
    """Put what a folder holds into an archive, in the order of the disk."""
    if archive.endswith(".zip"):
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted(Path(folder).rglob("*"), reverse=True):
                file.write(path, path.relative_to(folder))
    else:
        mode: Any = "w:" + archive.partition(".tar")[2].strip(".")
        with tarfile.open(archive, mode) as tar:
            for entry in sorted(os.listdir(folder), reverse=True):
                tar.add(f"{folder}/{entry}", entry)
    return archive


def refused(path: str, kind: type[PackerError] = SourceError, *, labelled: bool = False) -> str:
    with pytest.raises(kind) as error:
        open_source(path, SourceOptions(labelled=labelled))
    return str(error.value)


def noted(source: ImageSource, *, labelled: bool = False) -> list[str]:
    """The notes of the readers and the findings of all checks."""
    listing = Listing(source, source.targets, labels_given=labelled)
    return [*source.findings.notes, *(finding.sentence for finding in examine(listing))]


def check(source: ImageSource, jpeg: bytes, keys: list[str]) -> None:
    with source:
        assert source.keys == keys
        assert len(source) == len(keys)
        assert source.sizes.tolist() == [len(jpeg)] * len(keys)
        for index in reversed(range(len(keys))):
            assert source.read(index) == jpeg
    source.close()


@pytest.mark.parametrize("kind", ["", ".tar", ".tar.gz", ".zip"])
def test_class_folders_read_alike_from_disk_and_archive(tree: Tree, jpeg: bytes, kind: str) -> None:
    tree("dog/3.jpeg", "cat/a/2.PNG", "cat/1.jpg", "cat/.hidden.jpg", ".cache/9.jpg")
    Path("pets/cat/notes.txt").write_text("no image")
    Path("pets/README.md").write_text("no image")
    Path("pets/cat/5.HEIC").write_text("an image that is not read")
    Path("pets/dog/Thumbs.db").write_text("")
    source = open_source(pack("pets", "pets" + kind) if kind else "pets")
    assert source.targets.classes == ["cat", "dog"]
    assert source.targets.fixed["label"].tolist() == [0, 0, 1]
    assert noted(source) == ["Not read as images: 1 .heic, 1 .md, 1 .txt."]
    assert source.name == "pets" + kind
    check(source, jpeg, KEYS)


@pytest.mark.parametrize(
    "path", ["pets/train", "pets/train/", "pets.tar/train", "pets.tar/train/", "pets.zip/train"]
)
def test_one_split_is_named_by_path(tree: Tree, jpeg: bytes, path: str) -> None:
    tree("train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg")
    pack("pets", "pets.tar")
    pack("pets", "pets.zip")
    source = open_source(path)
    assert source.targets.classes == ["cat", "dog"]
    check(source, jpeg, ["cat/1.jpg", "dog/2.jpg"])


@pytest.mark.parametrize("name", ["pets", "pets.tar", "pets.zip"])
def test_splits_are_recognised_and_their_classes_put_together(tree: Tree, jpeg: bytes, name: str) -> None:
    tree("train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg", "test/eel/4.jpg")
    pack("pets", "pets.tar")
    pack("pets", "pets.zip")
    source = open_source(name)
    assert source.targets.classes == ["cat", "dog", "eel"]
    assert source.targets.fixed["label"].tolist() == [0, 2, 0, 1]
    assert {name: members.tolist() for name, members in source.splits.items()} == {
        "train": [2, 3],
        "test": [0, 1],
    }
    assert list(source.splits) == ["train", "test"]
    check(source, jpeg, ["test/cat/3.jpg", "test/eel/4.jpg", "train/cat/1.jpg", "train/dog/2.jpg"])


@pytest.mark.parametrize("name", ["pets", "pets.tar"])
def test_the_newest_file_is_known(tree: Tree, name: str) -> None:
    tree("cat/1.jpg", "dog/2.jpg")
    os.utime("pets/cat/1.jpg", ns=(0, 1_700_000_000_000_000_005))
    os.utime("pets/dog/2.jpg", ns=(0, 1_600_000_000_000_000_000))
    pack("pets", "pets.tar")
    os.utime("pets.tar", ns=(0, 1_500_000_000_000_000_000))
    with open_source(name) as source:
        assert str(source.newest) == (
            "cat/1.jpg of 2023-11-14 22:13:20.000000005"
            if name == "pets"
            else "pets.tar of 2017-07-14 02:40:00.000000000"
        )


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
@pytest.mark.parametrize(
    "keys",
    [
        ["cat/1.jpg", "dog/a/2.jpg", "dog/3.jpg"],
        ["cat/1.jpg", "cat/2.jpg"],
        ["cat/1.jpg", "cat/a/2.jpg"],
        ["cat/a/1.jpg", "cat/b/2.jpg"],
        ["cat/a/b/1.jpg"],
        ["1.jpg", "2.jpg"],
    ],
)
@pytest.mark.parametrize("of", ["what it holds", "itself"])
def test_an_archive_of_a_folder_is_the_folder(
    tree: Tree, jpeg: bytes, keys: list[str], kind: str, of: str
) -> None:
    tree(*keys)
    if of == "itself":
        archive = shutil.make_archive("pets", kind, root_dir=".", base_dir="pets")
    else:
        archive = shutil.make_archive("other", kind, root_dir="pets")
    folder, source = open_source("pets"), open_source(archive)
    assert source.targets.classes == folder.targets.classes
    labels = [
        found.targets.fixed["label"].tolist() if "label" in found.targets.fixed else None
        for found in (folder, source)
    ]
    assert labels[0] == labels[1]
    assert folder.keys == sorted(keys, key=lambda key: key.split("/")[:-1])
    check(source, jpeg, folder.keys)
    folder.close()


@pytest.mark.parametrize("name", ["pets", "pets.zip"])
def test_one_class_that_holds_folders_is_noted(tree: Tree, name: str) -> None:
    tree("animals/cat/1.jpg", "animals/dog/2.jpg")
    pack("pets", "pets.zip")
    with open_source(name) as source:
        assert source.targets.classes == ["animals"]
        assert noted(source) == [
            f"{name}: all images are in animals, so its folders (cat, dog) would be one class. Pass {name}/animals, or, if "
            "that is the class, classes='animals'."
        ]
    with open_source(f"{name}/animals") as source:
        assert source.targets.classes == ["cat", "dog"]


def test_a_folder_with_something_beside_it_is_a_class(tree: Tree, jpeg: bytes) -> None:
    tree("pets/cat/1.jpg", "pets/dog/2.jpg", root="top")
    Path("top/README").write_text("")
    source = open_source(pack("top", "pets.tar"))
    assert source.targets.classes == ["pets"]
    assert noted(source) == [
        "pets.tar: all images are in pets, so its folders (cat, dog) would be one class. Pass pets.tar/pets, or, if that "
        "is the class, classes='pets'.",
        "Not read as images: 1 without a suffix.",
    ]
    check(source, jpeg, ["pets/cat/1.jpg", "pets/dog/2.jpg"])


def test_one_class_in_splits_gets_no_advice_to_pass_it(tree: Tree) -> None:
    tree("train/cat/1.jpg", "val/cat/2.jpg")
    assert noted(open_source("pets")) == ["All images are in one class folder (cat)."]


@pytest.mark.parametrize("kind", ["", ".tar", ".zip"])
def test_images_beside_masks_are_told_wherever_they_lie(tree: Tree, kind: str) -> None:
    names = ["abel", "zoe", "kim", "li", "mary", "ned", "olga", "pat"]
    tree(*(f"{folder}/{name}.jpg" for folder in ("images", "masks") for name in names))
    name = pack("pets", "pets" + kind) if kind else "pets"
    assert noted(open_source(name))[0] == (
        f"{name}: images and masks hold files of equal names, such as images/abel.jpg and masks/abel.jpg, as images beside "
        f"their masks do; its folders would be classes. Pass {name}/images with pairs={{'mask': '{name}/masks'}}, or if "
        "they are the classes, classes='images,masks'."
    )


def test_splits_below_the_folder_that_an_archive_was_made_of(tree: Tree, jpeg: bytes) -> None:
    tree("pets/train/cat/1.jpg", "pets/test/cat/2.jpg", root="top")
    source = open_source(pack("top", "pets.tar"))
    assert list(source.splits) == ["train", "test"]
    check(source, jpeg, ["test/cat/2.jpg", "train/cat/1.jpg"])


@pytest.mark.parametrize("kind", ["", ".tar", ".zip"])
def test_a_flat_folder_has_no_labels(tree: Tree, jpeg: bytes, kind: str) -> None:
    tree("2.jpg", "1.jpg", "10.jpg")
    source = open_source(pack("pets", "pets" + kind) if kind else "pets")
    assert "label" not in source.targets.fixed
    assert source.targets.classes is None
    assert noted(source) == [NO_LABELS]
    check(source, jpeg, ["1.jpg", "10.jpg", "2.jpg"])


@pytest.mark.parametrize("kind", ["", ".tar", ".zip", ".tar.xz"])
def test_labels_from_elsewhere_go_with_any_layout(tree: Tree, jpeg: bytes, kind: str) -> None:
    tree("1.jpg", "train/2.jpg", "test/3.jpg")
    source = open_source(pack("pets", "pets" + kind) if kind else "pets", SourceOptions(labelled=True))
    assert (
        "label" in source.targets.fixed,
        source.targets.classes,
        source.splits,
        noted(source, labelled=True),
    ) == (False, None, {}, [])
    check(source, jpeg, ["1.jpg", "test/3.jpg", "train/2.jpg"])


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("name", ["pets", "pets.tar"])
def test_no_images(name: str, labelled: bool) -> None:
    Path("pets").mkdir()
    pack("pets", "pets.tar")
    endings = ", ".join(sorted(IMAGE_EXTENSIONS))
    assert refused(name, labelled=labelled) == (
        f"{name}: no images found; files ending in {endings} are read. Check the path."
    )


def test_images_at_the_top_and_in_folders(tree: Tree) -> None:
    tree("0.jpg", "cat/1.jpg")
    assert refused("pets") == (
        "pets: holds images at its top (0.jpg) and in folders (cat); all or none may be in class folders. "
        "Move some, or pass labels=."
    )


@pytest.mark.parametrize("name", ["pets", "pets.tar"])
def test_a_class_folder_without_images(tree: Tree, name: str) -> None:
    tree("cat/1.jpg")
    Path("pets/dog/deeper").mkdir(parents=True)
    pack("pets", "pets.tar")
    if name == "pets.tar":
        assert "pets.tar/dog: a class folder without images" in noted(open_source(name))[0]
    else:
        assert noted(open_source("pets"))[0] == (
            "pets/dog: a class folder without images; each needs at least one. Add some, remove the folder, or pass on_error='skip'."
            " If cat is no class either, pass pets/cat."
        )


def test_linked_folders_and_files_are_followed(tree: Tree, jpeg: bytes) -> None:
    tree("cat/1.jpg")
    tree("2.jpg", "x/3.jpg", root="elsewhere")
    Path("pets/dog").symlink_to("../elsewhere")
    Path("pets/cat/4.jpg").symlink_to("../../elsewhere/2.jpg")
    source = open_source("pets")
    assert source.targets.classes == ["cat", "dog"]
    check(source, jpeg, ["cat/1.jpg", "cat/4.jpg", "dog/2.jpg", "dog/x/3.jpg"])


@pytest.mark.parametrize(
    ("link", "target", "back"),
    [("cat/again", "..", "pets"), ("cat/a/again", "../../cat", "pets/cat"), ("again", ".", "pets")],
)
def test_a_link_that_leads_back_is_refused(tree: Tree, link: str, target: str, back: str) -> None:
    tree("cat/a/1.jpg")
    Path("pets", link).symlink_to(target)
    assert refused("pets") == (
        f"pets/{link}: a link back to {back}, which contains it; links may not form a loop. Remove the link."
    )


def test_two_links_to_one_folder_are_no_loop(tree: Tree, jpeg: bytes) -> None:
    tree("1.jpg", root="elsewhere")
    Path("pets").mkdir()
    Path("pets/cat").symlink_to("../elsewhere")
    Path("pets/dog").symlink_to("../elsewhere")
    check(open_source("pets"), jpeg, ["cat/1.jpg", "dog/1.jpg"])


def test_a_link_to_nothing_is_an_image_error_when_read(tree: Tree) -> None:
    tree("cat/1.jpg")
    Path("pets/cat/2.jpg").symlink_to("gone.jpg")
    with open_source("pets") as source, pytest.raises(ImageError) as error:
        source.read(1)
    assert str(error.value) == "cannot be read (No such file or directory)."


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "link to a device"])
def test_what_is_no_file_is_an_image_error_and_does_not_hang(tree: Tree, kind: str) -> None:
    tree("cat/1.jpg")
    os.mkfifo("pets/cat/2.jpg" if kind == "fifo" else "pipe")
    if kind != "fifo":
        Path("pets/cat/2.jpg").symlink_to("/dev/zero" if "device" in kind else Path("pipe").absolute())
    with open_source("pets") as source, pytest.raises(ImageError) as error:
        source.read(1)
    assert str(error.value) == "not a regular file."
    report = convert_images("pets", "pets.h5", size=8, on_error="skip", workers=1)
    assert report.rows == 1
    assert report.skipped == ({"key": "cat/2.jpg", "reason": "not a regular file."},)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_while_it_is_read(
    tree: Tree, jpeg: bytes, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    tree("cat/1.jpg")
    fstat = os.fstat

    def changing(fd: int) -> os.stat_result:
        status = fstat(fd)
        os.truncate("pets/cat/1.jpg", len(jpeg) + change)
        return status

    with open_source("pets") as source:
        monkeypatch.setattr(os, "fstat", changing)
        with pytest.raises(ImageError) as error:
            source.read(0)
    assert str(error.value) == "changed since the conversion began."


def test_reads_that_return_less_than_asked_are_continued(
    tree: Tree, jpeg: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree("cat/1.jpg")
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 100)))
    check(open_source("pets"), jpeg, ["cat/1.jpg"])


def test_a_folder_that_cannot_be_listed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree("cat/1.jpg")
    real = os.scandir

    def scandir(path: bytes) -> object:
        if path.rstrip(b"/").endswith(b"cat"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert refused("pets") == (
        "pets/cat: cannot be listed (Permission denied); its files would be missing. Make it readable."
    )


def test_names_that_are_not_utf_8(tree: Tree, jpeg: bytes) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    try:
        tree(f"cat/{name}")
    except OSError:
        pytest.skip("the file system allows UTF-8 names only")
    check(open_source("pets"), jpeg, [f"cat/{name}"])
    check(open_source(pack("pets", "pets.tar")), jpeg, [f"cat/{name}"])


def test_twins_are_packed(tree: Tree, jpeg: bytes) -> None:
    tree("cat/1.jpg", "cat/1.png", "dog/1.jpg")
    source = open_source("pets")
    check(source, jpeg, ["cat/1.jpg", "cat/1.png", "dog/1.jpg"])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone", "gone: no such file or folder; folders, lists and archives are read. Check the path."),
        (
            "gone.tar/train",
            "gone.tar/train: no such file or folder; folders, lists and archives are read. Check the path.",
        ),
        (
            "x.rar/train",
            "x.rar/train: no such file or folder; folders, lists and archives are read. Check the path.",
        ),
        (
            "x.rar",
            "x.rar: not a source of images; folders and files ending in .lst, .txt, .tar, .tar.gz, .tgz, .tar.bz2, "
            ".tbz2, .tar.xz, .txz, .zip are. Pass one of them.",
        ),
        (
            "pets.tar/cow",
            "pets.tar/cow: no such folder in the archive; its top holds cat. Pass one of its folders.",
        ),
    ],
)
def test_what_is_no_source(tree: Tree, path: str, message: str) -> None:
    tree("cat/1.jpg")
    pack("pets", "pets.tar")
    Path("x.rar").write_bytes(b"")
    assert refused(path, UsageError) == message


def test_a_source_may_be_a_path_object(tree: Tree, jpeg: bytes) -> None:
    check(open_source(tree("cat/1.jpg")), jpeg, ["cat/1.jpg"])


def test_an_image_that_vanishes_is_an_image_error(tree: Tree) -> None:
    tree("cat/1.jpg")
    with open_source("pets") as source:
        shutil.rmtree("pets")
        with pytest.raises(ImageError) as error:
            source.read(0)
    assert str(error.value) == "cannot be read (No such file or directory)."


class TestLists:
    @pytest.fixture(autouse=True)
    def _images(self, tree: Tree) -> None:
        tree("b.jpg", "a b.jpg", "cat/1.jpg", "odd.name", "caf\u00e9.jpg")

    def listed(self, text: str, name: str = "pets/list.txt") -> str:
        Path(name).write_text(text, newline="")
        return name

    def test_several_labels_in_a_line_are_separated(self) -> None:
        text = "b.jpg\tbig dog\na b.jpg\tdog\ncat/1.jpg\tbig\n"
        targets = open_source(self.listed(text), SourceOptions(separator="space")).targets
        assert (targets.fixed["label"].tolist(), targets.classes) == (
            [[1, 1], [0, 1], [1, 0]],
            ["big", "dog"],
        )

    @pytest.mark.parametrize(
        ("text", "keys", "labels", "classes"),
        [
            ("b.jpg\na b.jpg\n\n./cat/1.jpg", ["b.jpg", "a b.jpg", "cat/1.jpg"], None, None),
            ("\ufeffb.jpg\t3\r\na b.jpg\t1\r\n", ["b.jpg", "a b.jpg"], [3, 1], None),
            ("b.jpg 3\na b.jpg   1\nodd.name 0\n", ["b.jpg", "a b.jpg", "odd.name"], [3, 1, 0], None),
            ("b.jpg\tbig dog\na b.jpg\tcat\n", ["b.jpg", "a b.jpg"], [0, 1], ["big dog", "cat"]),
            ("b.jpg 1\na b.jpg 0.5\n", ["b.jpg", "a b.jpg"], [1.0, 0.5], None),
            ("cafe\u0301.jpg x\nb.jpg y\n", ["caf\u00e9.jpg", "b.jpg"], [0, 1], ["x", "y"]),
        ],
    )
    def test_lines(
        self, jpeg: bytes, text: str, keys: list[str], labels: list[int] | None, classes: list[str] | None
    ) -> None:
        source = open_source(self.listed(text))
        assert (
            None if "label" not in source.targets.fixed else source.targets.fixed["label"].tolist()
        ) == labels
        assert source.targets.classes == classes
        if labels is None:
            assert noted(source) == [NO_LABELS]
        elif classes is None:
            (note,) = noted(source)
            assert note.startswith("Labels are ")
        else:
            assert noted(source) == []
        check(source, jpeg, keys)

    def test_a_list_in_the_working_directory_takes_labels_from_elsewhere(self, jpeg: bytes) -> None:
        source = open_source(
            self.listed("pets/b.jpg\npets/cat/1.jpg\n", "images.lst"), SourceOptions(labelled=True)
        )
        assert ("label" in source.targets.fixed, noted(source, labelled=True)) == (False, [])
        check(source, jpeg, ["pets/b.jpg", "pets/cat/1.jpg"])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("\n\n", ": names no images; a list holds one path per line. Check the file."),
            (
                "b.jpg\nc.jpg\n",
                " line 2: no file c.jpg; paths are absolute, or relative to the list's folder. "
                "Correct it, or pass on_error='skip'.",
            ),
            (
                "b.jpg\n/nowhere/c.jpg\n",
                " line 2: no file /nowhere/c.jpg; paths are absolute, or relative to the list's folder. "
                "Correct it, or pass on_error='skip'.",
            ),
            (
                "b.jpg\ncat/../b.jpg\n",
                " line 2: cat/../b.jpg is also in line 1; each image is packed once. Remove one line.",
            ),
            (
                "b.jpg\n../pets/b.jpg\n",
                " line 2: ../pets/b.jpg is also in line 1; each image is packed once. Remove one line.",
            ),
            (
                "b.jpg 1\n\na b.jpg\n",
                " line 3: the label is empty; finite numbers, whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
                "Correct it, or pass on_error='skip'.",
            ),
        ],
    )
    def test_what_is_refused(self, text: str, message: str) -> None:
        assert refused(self.listed(text)) == "pets/list.txt" + message

    @pytest.mark.parametrize("slashes", ["/", "//"])
    def test_absolute_paths_below_the_list_are_relative_keys(
        self, tmp_path: Path, jpeg: bytes, slashes: str
    ) -> None:
        absolute = f"{slashes}{str(tmp_path / 'pets')[1:]}"
        source = open_source(self.listed(f"{absolute}/cat/1.jpg 1\nb.jpg 0\n{absolute}/a b.jpg 2\n"))
        assert source.targets.fixed["label"].tolist() == [1, 0, 2]
        check(source, jpeg, ["cat/1.jpg", "b.jpg", "a b.jpg"])

    @pytest.mark.parametrize("way", ["{pets}", "../pets"])
    def test_keys_of_images_elsewhere_start_where_they_part(
        self, tmp_path: Path, jpeg: bytes, way: str
    ) -> None:
        Path("lists").mkdir()
        folder = way.format(pets=tmp_path / "pets")
        name = self.listed(f"{folder}/cat/1.jpg\n{folder}/b.jpg\n", "lists/list.txt")
        check(open_source(name), jpeg, ["cat/1.jpg", "b.jpg"])
        check(open_source(self.listed(f"{folder}/cat/1.jpg\n", name)), jpeg, ["1.jpg"])

    def test_keys_of_images_below_the_list_and_elsewhere_share_a_folder(
        self, tree: Tree, tmp_path: Path, jpeg: bytes
    ) -> None:
        tree("1.jpg", root="petshop")
        source = open_source(self.listed(f"b.jpg\n{tmp_path}/petshop/1.jpg\n"))
        assert source.folder == f"{tmp_path}/"
        check(source, jpeg, ["pets/b.jpg", "petshop/1.jpg"])

    @pytest.mark.parametrize(
        ("keys", "found"),
        [
            (["x/1.jpg", "x/y/1.jpg"], ["1.jpg", "y/1.jpg"]),
            (["x/1.jpg", "xy/1.jpg"], ["x/1.jpg", "xy/1.jpg"]),
            (["x/y/1.jpg", "x.jpg", "xy/2.jpg"], ["x/y/1.jpg", "x.jpg", "xy/2.jpg"]),
        ],
    )
    def test_where_the_images_lie_does_not_show(
        self, tree: Tree, tmp_path: Path, jpeg: bytes, keys: list[str], found: list[str]
    ) -> None:
        Path("lists").mkdir()
        for place in ("here", "cat"):
            tree(*(f"{place}/{key}" for key in keys))
            listed = "".join(f"{tmp_path}/pets/{place}/{key}\n" for key in keys)
            check(open_source(self.listed(listed, "lists/list.txt")), jpeg, found)

    def test_labels_come_from_one_place(self) -> None:
        assert refused(self.listed("b.jpg 1\n"), UsageError, labelled=True) == (
            "pets/list.txt: has labels, but labels= is given too; only one of them can be used. Drop one."
        )


@pytest.mark.parametrize("how", ["replaced", "rewritten", "grown", "truncated", "deleted", "folder renamed"])
def test_a_file_that_is_another_one_than_was_listed_gives_no_image(tree: Tree, how: str) -> None:
    tree("cat/1.jpg", "dog/1.jpg")
    with open_source("pets") as source:
        assert source.keys[0] == "cat/1.jpg"
        path = "pets/cat/1.jpg"
        if how == "replaced":  # by one of the same size
            os.replace("pets/dog/1.jpg", path)
            os.utime(path, ns=(5, 5))
        elif how == "rewritten":
            with open(path, "r+b") as file:
                file.write(b"\xff")
            os.utime(path, ns=(5, 5))
        elif how in ("grown", "truncated"):
            os.truncate(path, os.path.getsize(path) + (1 if how == "grown" else -1))
        elif how == "deleted":
            os.unlink(path)
        else:
            os.rename("pets/cat", "pets/cats")
        gone = how in ("deleted", "folder renamed")
        with pytest.raises(ImageError) as error:
            source.read(0)
        assert str(error.value) == (
            "cannot be read (No such file or directory)." if gone else "changed since the conversion began."
        )


def test_a_list_that_is_a_pipe_or_no_text_is_refused(tree: Tree) -> None:
    tree("cat/1.jpg")
    os.mkfifo("pipe.txt")
    Path("zero.txt").write_bytes(b"pets/cat/1.jpg\0\n")
    Path("long.txt").write_text("a" * 9000)
    for name, begins in (
        ("pipe.txt", "pipe.txt: is not a regular file; a list of paths is needed."),
        ("zero.txt", "zero.txt line 1: has zero bytes, which UTF-8 text has not; a list of paths is needed."),
        ("long.txt", f"long.txt line 1: no file {'a' * 120}... (9,000 characters); paths are absolute"),
    ):
        with pytest.raises(SourceError) as error:
            open_source(name)
        assert str(error.value).startswith(begins)
