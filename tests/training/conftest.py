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


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Has the session's scope, so that it comes before fixtures of a module, some of which train a model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _one_thread_again(_one_thread):
    """Also for the test after one that computes with more."""
    yield
    torch.set_num_threads(1)
