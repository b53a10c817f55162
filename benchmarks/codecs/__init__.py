"""The cost of codecs."""
