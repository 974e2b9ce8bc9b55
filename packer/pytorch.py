"""torch, imported here first, so that a failed import raises a sentence."""

import os
import sys

from packer.errors import MissingDependencyError, PackerError


def import_torch(purpose: str) -> None:
    """Import torch.

    purpose: what needs it, the subject of the sentence. Raises MissingDependencyError; PackerError if the
    working folder was removed, because torch's MKL would end the process.
    """
    if "torch" not in sys.modules:
        try:
            os.getcwd()
        except FileNotFoundError:
            raise PackerError(
                f"{purpose}: torch cannot be imported, because the working folder was removed. Change to"
                " another folder."
            ) from None
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: half installed, a library is missing
        raise MissingDependencyError("torch", purpose, error) from None
