"""The data card of packs: one HTML page of what they hold, and of what is doubtful about it.

    data_card.py        report(): measures packs and writes the page
    image_measures.py   one pass over the images of packs, at 32 x 32 pixels: hashes, sizes, checksums
    perceptual_hash.py  a 64-bit hash of an image's coarse structure, and finer traits that confirm an equal hash
    near_duplicates.py  rows that are alike: the search, and what it means for splits and labels
    label_measures.py   how labels are distributed over packs and splits
    thumbnails.py       rows as small pictures inside the page
    charts.py           bars, histograms and tables, in HTML and SVG; the escaping of all text that comes from files
    card_content.py     all that stands on a card, before it is written as a page
    page.py             the page, and what it says of the packs as such
    page_style.py       its style
    image_sections.py, table_sections.py, duplicate_sections.py   its other sections

Start with data_card.py. Imports: codecs, format, orders, previews, progress, read, tables.transform.
"""
