"""The version of the package; that of the file format is apart (packer/format/header.py)."""

__version__ = "0.1.0"

# It renames open files into their places, locks them by their descriptors and reads them at places without moving.
NOT_ON_WINDOWS = "packer: runs on Linux and macOS. On Windows install it inside WSL2 (wsl --install), where it works as on Linux."
