"""The jinja2 templates from which every emitted file is made."""
