"""Conformance suites: what a store or a plan of one's own must do, as tests to subclass.

    from penstock.testing import PlanSuite, StoreSuite

    class TestMyStore(StoreSuite):
        @contextmanager
        def store(self, objects):
            yield MyStore(objects)

pytest collects the subclass; each failing test says which promise is broken. Needs pytest and hypothesis.
"""

from penstock.testing.plan import PlanSuite
from penstock.testing.store import StoreSuite

__all__ = ["PlanSuite", "StoreSuite"]
