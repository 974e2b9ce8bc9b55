"""OpenCV, imported in one place, so that a failed import raises a sentence."""

from packer.errors import MissingDependencyError, PackerError

try:
    import cv2
except ModuleNotFoundError as error:
    raise MissingDependencyError("opencv-python-headless", "working on images") from error
# opencv-python needs libGL, which servers lack; removing one of two packages may have removed the other's
# files
except ImportError as error:
    raise PackerError(
        f"OpenCV cannot be imported ({error}). Run: pip uninstall -y opencv-python opencv-python-headless;"
        " pip install opencv-python-headless"
    ) from error

__all__ = ["cv2"]
