"""One thread for torch: these tensors are small, and waiting threads would take turns. And who needs a compiler."""

import os
import shutil

import pytest
import torch

from training.native import COMPILERS


def pytest_runtest_setup(item):
    """Compiled loops are tested wherever the program itself would compile them."""
    if item.get_closest_marker("compiler") and not (os.environ.get("CC") or any(map(shutil.which, COMPILERS))):
        pytest.skip(f"needs a C compiler ({', '.join(COMPILERS)})")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
