"""A user's Python function as a step of loading, run by processes.

    transforms.py        PythonTransform: the function, and how torchvision's are called
    workers.py           the parent's side: hands out rows, and notices what dies
    workerproc.py        a process's side: reads rows, calls, writes what comes back into shared slots
    calling.py           how the function is called: seeds, and what it may return
    shared_slots.py      memory that all of the processes see alike

Start with transforms.py. Imports: format, load, orders, randomness, read.
"""
