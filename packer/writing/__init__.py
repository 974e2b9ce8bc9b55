"""Packs being written: the writer, and the locked working folder with its journal.

    pack_writer.py       PackWriter: takes blocks of rows, leaves a sealed pack under its final name
    working_folder.py    the locked working folder of an unfinished pack, and those of its parts
    journal.py           the journal of unfinished work, from which the next run resumes

Start with pack_writer.py. Imports: format, packs.
"""
