"""OpenCV, imported in one place, so that what keeps it from being imported is a sentence."""

from packer.errors import MissingDependencyError, PackerError

try:
    import cv2
except ModuleNotFoundError as error:
    raise MissingDependencyError("opencv-python-headless", "working on images") from error
except ImportError as error:  # opencv-python needs libGL, which servers lack; of two packages one may have removed the other's files
    raise PackerError(
        f"OpenCV cannot be imported ({error}). Run: pip uninstall -y opencv-python opencv-python-headless;"
        " pip install opencv-python-headless"
    ) from error

__all__ = ["cv2"]
