"""Objects in stores by URL, read and written whole or in ranges; nothing here knows what they hold.

    urls.py             s3://bucket/key and the like, taken apart
    access.py           the functions that everybody calls; each request goes to the helper process
    helper.py           the helper process: one for a process and its forked children, a thread a connection
    object_store.py     stores, through obstore or, of other schemes, fsspec: attempts, versions, exact lengths
    credentials.py      endpoint, region and keys as AWS's own tools find them
    store_errors.py     what a store answered, as one sentence

Start with access.py. Imports: nothing.
"""
