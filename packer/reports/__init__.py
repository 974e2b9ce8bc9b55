"""The data card of packs: an HTML page about their contents and about doubtful rows.

    data_card.py        report(): checks its arguments and writes the page
    card_content.py     measures the contents of a card; rows as small pictures
    image_measures.py   one pass over the images of packs, at 32 x 32 pixels: sizes, checksums, a 64-bit
                        perceptual hash, and traits that confirm an equal hash
    near_duplicates.py  the search for equal and similar rows, and their meaning for splits and labels
    label_measures.py   the distribution of labels over packs and splits
    page.py             fills in the page
    report.html         the page and its style, a template for Jinja2

Start with data_card.py. Imports: codecs, format, orders, packs, previews, progress, read, tables.transform.
"""
