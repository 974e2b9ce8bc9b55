"""Programs that store something else than arrays of samples in HDF5, recognised by their attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import h5py

from packer.errors import SourceError

_KERAS_3 = re.compile(r"(.*/)?vars/\d+\Z")
_TO_TABLE = 'Make a table: pandas.read_hdf({path!r}, {key!r}).to_parquet("table.parquet")'
_REMEDIES = {
    "a NetCDF file": 'Decode its variables: numpy.savez("arrays.npz", **{{name: v.values for name, v in '
    'xarray.open_dataset({path!r}, engine="netcdf4").data_vars.items()}})',
    "an AnnData file": "Make a table: data = anndata.read_h5ad({path!r}); "
    'data.to_df().join(data.obs).to_parquet("table.parquet")',
    "a file of a Keras model's weights": "Pass the file that holds its training data",
    "a pandas HDFStore": _TO_TABLE,
    "a table of PyTables": _TO_TABLE,
    "Python objects pickled by PyTables": "Unpickle them if you trust them: pack_dataset("
    'list(tables.open_file({path!r}).get_node({key!r})), "out.h5")',
}
"""What a file is, and the remedy."""


def check_writer(path: str, file: h5py.File) -> None:
    """Raise SourceError for a file of a program whose datasets are not arrays of samples."""
    for kind, key in _kinds(file):
        remedy = _REMEDIES[kind].format(path=path, key=f"/{key}")
        raise SourceError(f"{path}: is {kind}, not arrays of samples. {remedy}.")


def _kinds(file: h5py.File) -> Iterator[tuple[str, str]]:
    """Yield what a file is, a key of _REMEDIES, and the object that shows it."""
    if "_NCProperties" in file.attrs:
        yield "a NetCDF file", ""
    if _text(file, "encoding-type") == "anndata":
        yield "an AnnData file", ""
    if "layer_names" in file.attrs or "model_config" in file.attrs:
        yield "a file of a Keras model's weights", ""
    found: list[tuple[str, str]] = []
    arrays: list[str] = []

    def visit(name: str, item: h5py.HLObject) -> bool | None:
        if "_Netcdf4Dimid" in item.attrs:
            found.append(("a NetCDF file", name))
        elif "pandas_type" in item.attrs:
            found.append(("a pandas HDFStore", name))
        elif _text(item, "CLASS") == "TABLE":
            found.append(("a table of PyTables", name))
        elif _text(item, "PSEUDOATOM") == "object":
            found.append(("Python objects pickled by PyTables", name))
        elif isinstance(item, h5py.Dataset):
            arrays.append(name)
        return True if found else None  # ends the visit

    file.visititems(visit)
    yield from found
    if arrays and all(map(_KERAS_3.match, arrays)):
        yield "a file of a Keras model's weights", ""


def _text(item: h5py.HLObject, name: str) -> str:
    """Return an attribute as text, "" if there is none."""
    value = item.attrs.get(name, "")
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def matlab_class(item: h5py.Dataset) -> str:
    """Return the class that MATLAB 7.3 gave a variable, such as "double" or "cell"; "" for other files."""
    return _text(item, "MATLAB_class")
