"""Packs inside other frameworks. Import each module by its name: packer imports neither them nor a framework.

    huggingface.py    to_hf, from_hf: a pack as a Dataset of Hugging Face's datasets, and back
    lightning.py      PackedDataModule: loaders for Lightning's Trainer

Start with lightning.py. Imports: augment, convert, format, load, orders, packs, read, samples.
"""
