"""The kit for plugin authors, and what keeps this project's own references in step."""

from capacity_core.testing.checks import check_layout, check_matchers, check_prefixes

__all__ = ["check_layout", "check_matchers", "check_prefixes"]
