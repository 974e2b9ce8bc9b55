"""Names of points from their columns, and which of them are sides."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.inputs.label_options import Labels
from packer.inputs.point_names import columns_of, point_names, sides


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("left_eye_x,left_eye_y,nose_x,nose_y", "left_eye,nose"),
        ("x_nose,y_nose", "nose"),
        ("noseX,noseY", "nose"),
        ("x1,y1,x2,y2", "1,2"),
        ("kp0x,kp0y", "kp0"),
        ("kp_x_left,kp_y_left", "kp_left"),
        ("eye.x.1,eye.y.1", "eye.1"),
        ("eye (x),eye (y)", "eye"),
        ("kp[0].x,kp[0].y", "kp[0]"),
        ("tip_lon,tip_lat", "tip"),
        ("x,y", "1"),
        ("col,row", "1"),
        ("x,y,x1,y1", "x/y,x1/y1"),
        ("u,row of tip", "u/row of tip"),
    ],
)
def test_a_point_is_called_what_its_columns_have_in_common(columns: str, names: str) -> None:
    found = point_names(columns.split(","))
    assert found == tuple(names.split(","))
    assert point_names(columns_of(found)) == found


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        ("left_eye right_eye nose", "left_eye:right_eye"),
        ("righteye lefteye", "lefteye:righteye"),
        ("mouth_left_corner mouth_right_corner", "mouth_left_corner:mouth_right_corner"),
        ("RIGHT-HIP LEFT-HIP", "LEFT-HIP:RIGHT-HIP"),
        ("Left_eye right_eye", "Left_eye:right_eye"),
        ("eye_l eye_r", "eye_l:eye_r"),
        ("R.knee L.knee", "L.knee:R.knee"),
        ("EyeL EyeR", "EyeL:EyeR"),
        ("LEye REye", "LEye:REye"),
        ("lEye rEye", "lEye:rEye"),
        ("l r", "l:r"),
        ("thumbL1 thumbR1 thumbL2 thumbR2", "thumbL1:thumbR1 thumbL2:thumbR2"),
        ("lhip rhip lknee rknee", "lhip:rhip lknee:rknee"),
        (
            "LeftBrowLeftCorner LeftBrowRightCorner RightBrowLeftCorner RightBrowRightCorner",
            "LeftBrowLeftCorner:RightBrowRightCorner LeftBrowRightCorner:RightBrowLeftCorner",
        ),
        ("bright rank leftover lip", ""),
        ("light right low", ""),
        ("left_eye nose", ""),
        ("1 2 3", ""),
        ("L1 L2 L3", ""),
    ],
)
def test_sides_are_found_by_their_names(names: str, pairs: str) -> None:
    assert " ".join(map(":".join, sides(names.split()))) == pairs


POINTS = "a_x,a_y,b_x,b_y,c_x,c_y"


@pytest.mark.parametrize(
    ("given", "recorded"),
    [("a:b", ["a:b"]), (" c:a ", ["c:a"]), (["a:c"], ["a:c"]), ("none", []), ("", []), ((), [])],
)
def test_pairs_are_given(given: str, recorded: list[str]) -> None:
    labels = Labels("l.csv", keypoints=POINTS, flip_pairs=given)
    assert labels.record()["flip_pairs"] == recorded
    assert Labels.from_record(labels.record(), "l.csv").flip_pairs == labels.flip_pairs


@pytest.mark.parametrize("given", ["a:d", "a:a", "a", "a:b,b:c", "a:b:c", ":", "a:b,"])
def test_what_is_no_pair_of_points(given: str) -> None:
    with pytest.raises(UsageError) as error:
        Labels("l.csv", keypoints=POINTS, flip_pairs=given)
    assert str(error.value).endswith(
        "): is no pair of points, LEFT:RIGHT, each in one pair; the points are a, b, c. Correct it."
    )


def test_pairs_need_points() -> None:
    with pytest.raises(UsageError) as error:
        Labels("l.csv", flip_pairs="a:b")
    assert str(error.value) == (
        "labels=Labels(flip_pairs='a:b'): applies to points, but there are none. Pass labels=Labels(keypoints=), "
        "or leave it out."
    )
