"""The data sets this package knows: one per file, registered by the file itself."""
