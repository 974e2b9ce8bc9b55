"""A user's Python function as a step of loading, run by processes or threads.

    transforms.py        PythonTransform: the function, and how torchvision's are called
    workers.py           parent side: hands out rows, and notices processes that die
    threads.py           the same by threads of this process
    workerproc.py        child side: reads rows, calls the function, writes results into shared slots
    calling.py           calls the function: seeds, and checks of its results
    shared_slots.py      memory that all processes share

Start with transforms.py. Imports: format, load, orders, randomness, read.
"""
