"""``python -m packer``: the command line where another program called packer comes first on the PATH."""

from packer.cli import main

main()
