"""The version of the package; that of the file format is apart (packer/format/header.py)."""

__version__ = "0.1.0"
