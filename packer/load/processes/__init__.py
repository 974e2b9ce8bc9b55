"""A user's Python function as a step of loading, run by processes. Read ``transforms.py`` first.

transforms.py  PythonTransform: the function, and how it is run
workers.py     the parent's side: hands out rows, and notices what dies
workerproc.py  a process's side: reads rows, calls, writes what comes back into shared slots
libraries.py   transforms of torchvision and albumentations, and the fields they move
torchvision_call.py, albumentations_call.py   how these are called
unchanged.py   a transform that changes nothing is noticed
calling.py     how the function is called: seeds, and what it may return
shared_slots.py  memory that all of them see alike
"""
