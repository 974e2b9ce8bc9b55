"""The data card of packs: one HTML page of what they hold, and of what is doubtful about it.

    data_card.py        report(): checks what is given, and writes the page
    card_content.py     all that stands on a card, measured; rows as small pictures
    image_measures.py   one pass over the images of packs, at 32 x 32 pixels: sizes, checksums, a 64-bit hash of an image's coarse
                        structure, and finer traits that confirm an equal hash
    near_duplicates.py  rows that are alike: the search, and what it means for splits and labels
    label_measures.py   how labels are distributed over packs and splits
    page.py             the page and its sections
    html_parts.py       bars, histograms and tables, in HTML and SVG; the escaping of all text that comes from files; the style

Start with data_card.py. Imports: codecs, format, orders, previews, progress, read, tables.transform.
"""
