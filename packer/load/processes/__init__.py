"""A user's Python function as a step of loading, run by processes.

    transforms.py           PythonTransform: the function, and how it is run
    workers.py              the parent's side: hands out rows, and notices what dies
    workerproc.py           a process's side: reads rows, calls, writes what comes back into shared slots
    calling.py              how the function is called: seeds, and what it may return
    libraries.py            transforms of torchvision and albumentations, and the fields they move
    torchvision_call.py     how torchvision's are called
    albumentations_call.py  how albumentations' are called
    unchanged.py            notices a transform that changes nothing
    shared_slots.py         memory that all of the processes see alike

Start with transforms.py. Imports: augment, format, load, orders, randomness, read, starting.
"""
