"""Objects in stores by URL, read and written completely or in ranges, without knowledge of their content.

    urls.py             parsing of s3://bucket/key and other URLs
    access.py           the functions for other folders; each request goes to the helper process
    helper.py           the helper process of a process and its forked children, with a thread per connection
    object_store.py     stores, through obstore or, for other schemes, fsspec: retries, versions, lengths
    credentials.py      endpoint, region and keys, located like AWS's tools do
    store_errors.py     errors of stores as sentences

Start with access.py. Imports: nothing.
"""
