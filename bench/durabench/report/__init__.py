"""Reads result folders back as cells, a pick and an exit status, and shows them: as table, JSON, CSV or Markdown.

`document` makes the one JSON document that everything else is made of; `render`, `table` and `write` show it.
"""

from durabench.output import Output, OutputError
from durabench.report.cells import CELL, KEY, NOT_POSSIBLE, Cell, cells
from durabench.report.document import document, exit_status
from durabench.report.expectations import Expectation, ExpectationsError, load_expectations
from durabench.report.output import outputs, render, write, write_block
from durabench.report.pick import Pick, pick
from durabench.report.table import table

__all__ = [
    "CELL",
    "KEY",
    "NOT_POSSIBLE",
    "Cell",
    "Expectation",
    "ExpectationsError",
    "Output",
    "OutputError",
    "Pick",
    "cells",
    "document",
    "exit_status",
    "load_expectations",
    "outputs",
    "pick",
    "render",
    "table",
    "write",
    "write_block",
]
