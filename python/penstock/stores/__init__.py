"""Stores: where bytes lie, and how to bring in one of your own.

A store of one's own is any object with the three methods of :class:`Store`; wrap nothing, subclass nothing. Give it a
scheme with :func:`register`, open ``scheme://…``, and let ``penstock.testing.StoreSuite`` prove it.
"""

from penstock.stores.contract import Store
from penstock.stores.native import native_store
from penstock.stores.registry import register

__all__ = ["Store", "native_store", "register"]
