from __future__ import annotations

import pickle

from packer.load.batch import batch_type, make_batch


def test_a_batch_is_a_named_tuple():
    batch = make_batch(("image", "label"), [1, 2])
    assert (batch.image, batch.label) == (1, 2)
    image, label = batch
    assert (image, label) == (1, 2)
    assert repr(batch) == "Batch(image=1, label=2)"


def test_it_can_be_pickled_and_keeps_its_type():
    batch = pickle.loads(pickle.dumps(make_batch(("image", "key"), [[1], ["a"]])))
    assert batch == ([1], ["a"])
    assert type(batch) is batch_type(("image", "key"))
