"""Images to be packed, and what is known of each of them.

    image_sources.py   opens a folder, list or archive of images, or a data set in a layout of its own
    opened_source.py   ImageSource: keys, bytes, sizes, labels of images, wherever they lie
    findings.py        what is refused, left out or noted while all this is listed
    image_archives.py  Archive: lists tars and zip files, and reads them at their members' places
    remote_images.py   a folder of images in a store, read ahead
    webdataset_tars.py WebDataset's tars: labels beside images of the same name
    parquet_images.py  Parquet files with a column of images, as Hugging Face's datasets writes them
    file_names.py      names as text, whatever the locale; what folders mean: classes, splits
    image_targets.py   what is known of each image: labels, boxes, keypoints; read from a CSV
    coco_annotations.py  what COCO's JSON says of each image: boxes and their classes
    label_csv.py       the rows of that CSV, and the images they name; lines of text files
    label_values.py    the rules for labels given as text
    label_options.py   Labels: where labels stand, and how they are read
    image_pairs.py     masks and the like, found by name

Start with image_sources.py. Imports: format, pixels, remote.
"""
