"""The order that names of columns tell."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.inputs.coordinate_names import box_names, point_order


@pytest.mark.parametrize(
    ("names", "ordered", "format"),
    [
        ("xmin,ymin,xmax,ymax", "xmin,ymin,xmax,ymax", "xyxy"),
        ("ymin,xmin,ymax,xmax", "xmin,ymin,xmax,ymax", "xyxy"),
        ("XMin,XMax,YMin,YMax", "XMin,YMin,XMax,YMax", "xyxy"),
        ("x1,x2,y1,y2", "x1,y1,x2,y2", "xyxy"),
        ("xmax,ymax,xmin,ymin", "xmin,ymin,xmax,ymax", "xyxy"),
        ("top,left,bottom,right", "left,top,right,bottom", "xyxy"),
        ("l,t,r,b", "l,t,r,b", "xyxy"),
        ("r1,c1,r2,c2", "c1,r1,c2,r2", "xyxy"),
        ("min_row,min_col,max_row,max_col", "min_col,min_row,max_col,max_row", "xyxy"),
        ("rmin,rmax,cmin,cmax", "cmin,rmin,cmax,rmax", "xyxy"),
        ("ytl,xtl,ybr,xbr", "xtl,ytl,xbr,ybr", "xyxy"),
        ("startY,startX,endY,endX", "startX,startY,endX,endY", "xyxy"),
        (
            "top_left_y,top_left_x,bottom_right_y,bottom_right_x",
            "top_left_x,top_left_y,bottom_right_x,bottom_right_y",
            "xyxy",
        ),
        (
            "bottom_left_x,bottom_left_y,top_right_x,top_right_y",
            "bottom_left_x,top_right_y,top_right_x,bottom_left_y",
            "xyxy",
        ),
        ("x,y,x2,y2", "x,y,x2,y2", "xyxy"),
        ("bbox.y,bbox.x,bbox.h,bbox.w", "bbox.x,bbox.y,bbox.w,bbox.h", "xywh"),
        ("left,top,width,height", "left,top,width,height", "xywh"),
        ("BBox X Min,BBox Y Min,BBox Width,BBox Height",) * 2 + ("xywh",),
        ("bx,by,bw,bh", "bx,by,bw,bh", "xywh"),
        ("xc,yc,bw,bh", "xc,yc,bw,bh", "cxcywh"),
        ("y_center,x_center,height,width", "x_center,y_center,width,height", "cxcywh"),
        ("w,h,cx,cy", "cx,cy,w,h", "cxcywh"),
    ],
)
def test_names_of_boxes(names: str, ordered: str, format: str) -> None:
    given = names.split(",")
    found = box_names(given)
    assert found is not None
    assert ",".join(given[place] for place in found.order) == ordered
    assert found.format == format
    plain = {"x", "y"} <= set(given) or given[0] in ("bbox.y", "bx")
    assert found.certain is not (format == "xywh" and plain)


@pytest.mark.parametrize("names", ["a,b,c,d", "0,1,2,3", "left,top,right,bot", "box 0,box 1,box 2,box 3"])
def test_names_that_say_nothing_else(names: str) -> None:
    assert box_names(names.split(",")) is None


@pytest.mark.parametrize("names", ["xmin,ymin,xmax,height", "x,y,w,w2", "y,x,a,b", "x1,x2,x3,x4"])
def test_names_that_fit_no_box(names: str) -> None:
    with pytest.raises(UsageError, match=f"^boxes {names}: the names say no order; two corners, or"):
        box_names(names.split(","))


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        ("y1,x1,y2,x2", "x1,y1,x2,y2"),
        ("x1,x2,y1,y2", "x1,y1,x2,y2"),
        ("row,col", "col,row"),
        ("r,c", "c,r"),
        ("nose_y,nose_x,tail_x,tail_y", "nose_x,nose_y,tail_x,tail_y"),
        ("eyey,eyex,lipy,lipx", "eyex,eyey,lipx,lipy"),
        ("left_x,left_y,right_x,right_y", "left_x,left_y,right_x,right_y"),
        ("x1,y2", "x1,y2"),
        ("y,x,u,v", "x,y,u,v"),
        ("X,Y", "X,Y"),
    ],
)
def test_names_of_points(names: str, ordered: str) -> None:
    given = names.split(",")
    order = point_order(given)
    assert order is not None
    assert ",".join(given[place] for place in order) == ordered


def test_names_of_points_that_say_nothing_or_something_else() -> None:
    assert point_order(["a", "b", "c", "d"]) is None
    with pytest.raises(UsageError) as error:
        point_order(["eye_x", "eye_y", "eye_v", "lip_x", "lip_y", "lip_v"])
    assert str(error.value) == (
        "keypoints eye_x,eye_y,eye_v,lip_x,lip_y,lip_v: eye_v is neither an x nor a y, by their names; each point "
        "has an x and a y. Pass only these columns."
    )
    with pytest.raises(UsageError, match="they are not pairs of an x and a y, by their names"):
        point_order(["x1", "x2", "y3", "y4"])
