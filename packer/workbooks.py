"""Sheets of workbooks (.xlsx), by openpyxl."""

from __future__ import annotations

import warnings
from typing import IO, Any

from packer.errors import MissingDependencyError, SourceError

ERRORS = ("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A")
"""Values of cells whose formulas failed."""


def filled_sheets(name: str, file: IO[bytes]) -> dict[str, Any]:
    """Return the sheets with values, which openpyxl reads, by title.

    name: of the file, for messages. Raises SourceError, MissingDependencyError.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise MissingDependencyError("openpyxl", name, error) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and the like, which no cell's value depends on
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            return {sheet.title: sheet for sheet in book.worksheets if _is_filled(sheet)}
        except Exception as error:  # openpyxl raises many kinds for damaged files
            raise SourceError(f"{name}: is no readable .xlsx ({error}). Save it again, or as CSV.") from None


def _is_filled(sheet: Any) -> bool:
    return any(value is not None for row in sheet.iter_rows(values_only=True) for value in row)
