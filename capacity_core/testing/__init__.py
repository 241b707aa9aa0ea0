"""The kit for plugin authors, and what keeps this project's own references in step."""
