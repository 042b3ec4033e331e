"""One self-contained page on a comparison: numbers, curves, classes, settings."""

from ssl_toolkit.reports.html.page import write_report as write_report
