"""Tables: read from files, converted into packs, appended, merged and exported; and the mapping of a pack, applied to new rows.

    table_conversion.py  convert_table, append_table
    staging.py           records on the disk, once they are read; table_rows.py: rows of the pack
    measuring.py         statistics of the staged rows
    table_packs.py       rows of packs that were made of tables
    table_export.py      export_table
    reading/             files of tables, as records
    transform/           what becomes of each column; NumPy alone, and no files

Start with table_conversion.py. Importing the folder itself needs NumPy alone.
"""

from packer.tables.transform.apply_transform import apply

__all__ = ["apply"]
