import mmap

import numpy as np
import pytest

from helpers.edge.vulkan import page_aligned
from helpers.edge.zero_copy import ELEMENTS, addresses, prove, prove_alias, prove_import, prove_mps, prove_upload

torch = pytest.importorskip("torch")


def test_an_alias_copies_nothing_and_sees_both_ways(any_device):
    proof = prove_alias(any_device)
    assert proof.zero_copy and proof.same_pointer and proof.copied_bytes == 0 and not proof.reason


def test_an_import_copies_nothing_and_lies_on_a_page(any_device):
    proof = prove_import(any_device)
    if proof.reason:
        assert proof.reason == any_device.info.why_not("host_import") and not proof.zero_copy
        pytest.skip(proof.reason)
    assert proof.zero_copy and proof.page_aligned


def test_an_upload_is_none_of_it(any_device):
    proof = prove_upload(any_device)
    assert proof.copied_bytes == 4 * ELEMENTS
    assert not (proof.zero_copy or proof.same_pointer or proof.device_sees_host or proof.host_sees_device)


def test_the_three_addresses_are_one(any_device):
    buffer = any_device.buffer(10)
    assert len(set(addresses(buffer.array(), buffer.tensor(), buffer))) == 1
    assert len(set(addresses(np.zeros(10, np.float32), torch.zeros(10), buffer))) == 3


def test_a_tensor_that_owns_pages_becomes_a_buffer(device):
    if not device.info.can("host_import"):
        pytest.skip(device.info.why_not("host_import"))
    tensor = torch.from_numpy(page_aligned(1000))
    buffer = device.import_array(tensor)
    tensor.fill_(2.5)
    assert buffer.tensor().data_ptr() == tensor.data_ptr() and bool((buffer.tensor() == 2.5).all())


def test_weights_mapped_from_a_file_are_a_buffer_without_a_copy(device, tmp_path):
    if not device.info.can("host_import"):
        pytest.skip(device.info.why_not("host_import"))
    path = tmp_path / "weights.bin"
    np.arange(3000, dtype=np.float32).tofile(path)
    weights = np.memmap(path, np.float32, "r+")
    before = device.copied_bytes
    buffer = device.import_array(weights)
    assert weights.ctypes.data % mmap.PAGESIZE == 0 and buffer.array()[-1] == 2999
    assert device.copied_bytes == before


def test_the_counter_example_says_where_it_needs_to_run():
    proof = prove_mps()
    if torch.backends.mps.is_available():
        assert not proof.same_pointer and proof.copied_bytes
    else:
        assert "Apple silicon" in proof.reason and not proof.zero_copy


def test_all_ways_are_tried(device):
    assert [proof.way for proof in prove(device)] == ["alias", "import", "upload"]
