"""The runner process: executes flows. The only importer of pyoco."""
