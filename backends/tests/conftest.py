"""What the tests of several adapters share: opening with patience, promises compared, and all that a failure shows."""

import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from durabench_backends.contract import NotReady


@pytest.fixture(scope="session")
def opened():
    """Open a namespace of a backend that may still be coming up."""

    def open_patiently(backend, namespace="data", deadline_s=30):
        end = time.monotonic() + deadline_s
        while True:
            try:
                return backend.open(namespace)
            except NotReady:
                assert time.monotonic() < end, "not ready by the deadline"
                time.sleep(0.01)

    return open_patiently


@pytest.fixture(scope="session")
def no_stronger():
    """Whether one promise promises no more than another."""

    def compare(weaker, promise):
        return (
            all(
                promise.may_lose_s.get(domain, float("inf")) <= seconds for domain, seconds in weaker.may_lose_s.items()
            )
            and (weaker.atomic or 0) <= (promise.atomic or 0)
            and (weaker.ordered or 0) <= (promise.ordered or 0)
        )

    return compare


@pytest.fixture(scope="session")
def said():
    """All that a person could see of a failure: its words and its traceback, contexts included."""

    def fail(attempt, kind):
        with pytest.raises(kind) as caught:
            attempt()
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        return "".join(traceback.format_exception(caught.value)) + repr(caught.value)

    return fail


@pytest.fixture(scope="session")
def over_and_over():
    """Somebody who does one thing all the time, in a thread, as long as the block lasts."""

    @contextmanager
    def busy(step):
        done = threading.Event()

        def work():
            times = 0
            while not done.is_set():
                step()
                times += 1
            return times

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                yield
            finally:
                done.set()
            assert working.result(), "what was to be a load did nothing"

    return busy
