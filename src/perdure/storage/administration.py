"""Provide what the operators of a database need besides the contract: the audit, saved views, lists of what is held.

An engine needs none of it, so it is no part of `Storage`: a storage of another author has no administration. Its parts
take no part in the transactions of the storage: a record of an action must outlive the action's failure.
"""

from typing import NamedTuple

from perdure.codecs.pipeline import Pipeline
from perdure.storage.audit import Audit
from perdure.storage.contract import Storage
from perdure.storage.encoding.fields import Fields
from perdure.storage.saved_views import SavedViews
from perdure.storage.stores import SQLStorage, backend_of
from perdure.storage.surveys import Surveys


class Administration(NamedTuple):
    """Group what operators need of one storage."""

    audit: Audit
    views: SavedViews
    surveys: Surveys


def administration_of(storage: Storage, pipeline: Pipeline | None = None) -> Administration | None:
    """Return the administration of a storage, or None if it has none; `pipeline` encodes values as the storage does."""
    if not isinstance(storage, SQLStorage):
        return None
    fields = None if pipeline is None else Fields(pipeline)
    backend = backend_of(storage)
    return Administration(Audit(backend, fields), SavedViews(backend, fields), Surveys(backend, fields))
