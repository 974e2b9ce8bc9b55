"""Packs inside other frameworks, each imported by its own name; nothing here is imported with packer, and no framework either.

    lightning.py      PackedDataModule: loaders for Lightning's Trainer

Start with lightning.py. Imports: augment, load.
"""
