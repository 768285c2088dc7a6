"""The report: one page about runs and comparisons that opens in any browser without a network."""

from sora.report.page import write_figure_page, write_page

__all__ = ["write_figure_page", "write_page"]
