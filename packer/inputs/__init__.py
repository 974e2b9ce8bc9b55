"""Inputs of an image conversion: image files, and the labels, boxes, keypoints and masks that belong to them.

    image_sources.py   opens a folder, list or archive of images, or a WebDataset, Parquet or COCO dataset
    opened_source.py   ImageSource: keys, bytes, sizes and labels of images, for every kind of source
    listing.py         Listing: a source as it is understood; Finding: a doubt about it
    checks/            doubts about a listing, found before anything is written
    findings.py        Findings: refused images, skipped inputs and notes, collected while a source is listed
    image_archives.py  Archive: lists tar and zip files, and reads members at their offsets
    remote_images.py   a folder of images in an object store, prefetched
    webdataset_tars.py WebDataset tars: images, with labels in members of the same name
    parquet_images.py  Parquet files with an image column, as Hugging Face datasets writes them
    file_names.py      file names as text in every locale; class folders and split folders
    frame_names.py     the order of frames by the numbers in their names
    image_targets.py   ImageTargets: labels, boxes and keypoints of each image
    table_targets.py   labels, boxes, keypoints and image sizes from the columns of a CSV
    boxes.py           Boxes: the boxes of all images, placed in rows
    coordinate_names.py  axis and place that a column's name tells: xmin, cx, row
    coordinate_order.py  order and format of the columns of boxes and points, by names and values
    coordinate_frames.py boxes and points of upright images, or of pictures as stored
    spare_columns.py   the columns of classes and image sizes among those that are not chosen
    box_layouts.py     datasets of boxes in a folder: which of the next three it holds
    coco_annotations.py  boxes and classes of each image, read from COCO JSON
    yolo_labels.py     boxes and classes of each image, read from YOLO's text files
    yolo_dataset.py    YOLO's data.yaml: names of the classes, images of the splits
    voc_annotations.py boxes and classes of each image, read from Pascal VOC's XML files
    surroundings.py    labels in the folders around a source
    label_files.py     label files matched to images by their names; splits in paths
    label_csv.py       LabelTable: the rows of a label file, matched to images
    image_names.py     the image that a name in a label file means
    label_columns.py   the columns of a label file: header, file names, labels
    label_rows.py      rows of label files: text, JSON, Excel, Parquet
    text_files.py      lines of text files, in bounded memory
    label_values.py    the rules for labels given as text
    label_options.py   Labels: the label file, its columns, and how they are parsed
    mask_values.py     MaskValues: values or colors of masks that become class numbers
    point_names.py     names of points, from their columns, and which of them are left and right
    image_pairs.py     masks and other per-pixel partners, matched by name
    pair_names.py      the rules by which names of images and partners match

Start with image_sources.py. Imports: format, packs, pixels, remote.
"""
