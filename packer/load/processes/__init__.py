"""A user's Python function as a step of loading, run by processes. Read ``transforms.py`` first.

transforms.py  PythonTransform: the function, and how it is run
workers.py     the parent's side: hands out rows, and notices what dies
workerproc.py  a process's side: reads rows, calls, writes what comes back into shared slots
calling.py     how the function is called: seeds, and what it may return
shared.py      memory that all of them see alike
"""
