"""Packs inside other frameworks, each imported by its own name; nothing here is imported with packer, and no framework either.

    huggingface.py    to_hf, from_hf: a pack as a Dataset of Hugging Face's datasets, and back
    lightning.py      PackedDataModule: loaders for Lightning's Trainer

Start with lightning.py. Imports: augment, convert, format, load, orders, read, samples.
"""
