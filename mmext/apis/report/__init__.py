"""The report of a test: ``report.json``, and a page that shows it."""

__all__ = []
