"""The documentation: its site, the pages that are generated from the code, and the picture of the dashboard."""
