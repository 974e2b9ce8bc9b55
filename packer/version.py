"""The version of the package; the file format has its own (packer/format/header.py)."""

__version__ = "0.2.0"

# packer renames open files, locks them by descriptor, and reads them by offset (pread).
NOT_ON_WINDOWS = (
    "packer: runs on Linux and macOS."
    " On Windows install it inside WSL2 (wsl --install), where it works as on Linux."
)
