"""What both datasets tell of the rows that they load, under torchvision's names; what cannot be set is refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from packer.format.pack import Pack
from packer.load import other_loaders
from packer.orders.runs import one_run
from packer.orders.subset import Subset
from packer.read.loaded_fields import decode_ragged
from packer.read.row_reader import RowReader
from packer.read.row_selection import class_names, read_column

_NO_FILES = "rows of a pack are no files. Ask for keys, the names of the files that they were, and targets, their labels"


class Fixed(list[Any]):
    """A list that a dataset tells: equal to a plain one, but what is set in it would change nothing, and is refused."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "a dataset's list is read-only: what is set in it changes no row. Change list(...) of it"
        )

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


class RowsInfo:
    """Classes, targets and keys of the rows of a dataset, in their order; read when they are first asked for, read-only.

    A subclass may set attributes of its own in its methods, also in place of these.
    """

    pack: Pack
    subset: Subset
    _words: ClassVar[Mapping[str, str]]
    """Words of other loaders, and ours for them."""
    _settable: ClassVar[tuple[str, ...]] = ()
    """Attributes that take effect when they are set."""
    samples = other_loaders.Absent(_NO_FILES)
    imgs = other_loaders.Absent(_NO_FILES)

    def __setattr__(self, name: str, value: Any) -> None:
        # A dataset's methods set what they like, a user's subclass's too; from elsewhere only what takes effect, or is a note.
        # The class asked is packer's own: the arguments of a user's subclass are the user's.
        if (
            not name.startswith("_")
            and name not in self._settable
            and not other_loaders.in_method_of(type(self), other_loaders.caller())
        ):
            other_loaders.refuse_attribute(self._own(), self._words, name)
        super().__setattr__(name, value)

    @classmethod
    def _own(cls) -> type:
        return next(kind for kind in cls.__mro__ if "_words" in kind.__dict__)

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes by number: all of the pack's, also where the dataset loads some of them only."""
        names = class_names(self.pack)
        if not names:
            raise AttributeError(
                f"{self.pack.path}: has no class names. Labels are in targets, if there are any."
            )
        return Fixed(names)

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """Numbers of the classes by name."""
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each row: numbers, or lists of numbers where a label holds several. Costs 10 to 100 ms a million."""
        if all(f.name != "label" or f.ragged for f in self.pack.fields):
            raise AttributeError(f"{self.pack.path}: has no field 'label' of one length, so no targets.")
        return Fixed(read_column(self.pack, "label", self.subset).tolist())

    @cached_property
    def keys(self) -> list[str]:
        """The path of each row's input, as its folder, list or archive named it."""
        field = next((f for f in self.pack.fields if f.name == "key"), None)
        if field is None:
            raise AttributeError(f"{self.pack.path}: has no field 'key', so no keys.")
        runs, reader = self.subset.place(one_run(0, self.subset.rows)), RowReader(self.pack, [field])
        try:
            rows = reader.read_ragged(field.name, runs)
        finally:
            reader.close()
        return Fixed(decode_ragged(self.pack, field, rows, runs.rows().tolist()))
